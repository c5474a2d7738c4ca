"""``python -m suites.benchmarks.spread [--runs 20] [paths]``: how far the numbers of each test spread between runs.

Every run takes the tests in another order; every second one spreads them over two workers of pytest-xdist. What is
reported is the spread of the peak of requested bytes above start, in bytes, of the tests that passed in every run and
allocated something, and how often baselines recorded in the first run would have failed a test in another. Hypothesis
draws the same few examples in each run.

Left out are tests that start processes, for these have memory of their own, and on a card those that do not use it. A
run of all suites takes minutes, most of them for tests that allocate nothing: ``--runs 1 --keep all.json`` and then
``--among all.json`` measures the others alone. Tests that draw random numbers (``A3`` of the zoo of graphs) may spread,
and those in which it matters when the garbage collector comes. On a card, whose blocks do not tell who made them, leaks
are looked for as in any run, so that garbage of one test is not freed in the next.

Some tests hold counters to the byte themselves, and fail where garbage of others goes meanwhile, which nobody counted
without a session around them. They are named, and tell nothing of the spread.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import pytest

from cudamem_testing import torch_api
from cudamem_testing.baselines.update import measured_by_test
from cudamem_testing.model.baselines import Measured, fold
from cudamem_testing.model.changes import TRACKED, Comparison
from cudamem_testing.model.sizes import format_size
from cudamem_testing.recorders.cards import share
from cudamem_testing.report.files import read_json

ROOT = Path(__file__).parents[2]
CARDS = "CUDA_VISIBLE_DEVICES"
SEED, AMONG = "CUDAMEM_SPREAD_SEED", "CUDAMEM_SPREAD_AMONG"
PATHS = {
    "cpu": ("suites",),
    "cuda": (
        "suites/tour",
        "suites/graphs",
        "suites/operators",
        "suites/recorders",
        "suites/snapshots/test_programs.py",
        "suites/test_peaks.py",
        "suites/torch_api/test_cuda.py",
        "suites/trace/test_conformance_categories.py",
        "suites/trace/test_same_text.py",
    ),
}

Taken = Mapping[str, tuple[Measured, ...]]


class Run(NamedTuple):
    """What one run printed, what every test took that passed, and the tests that failed."""

    text: str
    taken: Taken
    failed: frozenset[str]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """As a plugin of the runs: the order of the seed, the same in every worker; of a card the tests that use one."""
    if config.getoption("cudamem_device") == "cuda":
        items[:] = [one for one in items if one.get_closest_marker("gpu") or one.nodeid.startswith("suites/tour/")]
    if AMONG in os.environ:
        known = allocating(Path(os.environ[AMONG]))
        items[:] = [one for one in items if one.nodeid in known]
    items.sort(key=lambda item: item.nodeid)
    random.Random(os.environ[SEED]).shuffle(items)


def allocating(report: Path) -> frozenset[str]:
    """The tests that passed in an earlier run and allocated something."""
    tests = (test for test in read_json(report).tests if test.outcome == "passed")
    return frozenset(test.nodeid for test in tests if any(not one.idle for one in test.measured))


def measure(number: int, paths: Sequence[str], device: str, among: Path | None, keep: Path | None) -> Run:
    """One run; the report of the first one is kept."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not subprocess", "-p", "no:cacheprovider"]
        command += ["-p", "suites.benchmarks.spread", "--hypothesis-seed=1", "-o", "addopts=--import-mode=importlib"]
        leaks = "off" if device == "cpu" else "warn"
        command += ["--cudamem", f"--cudamem-device={device}", f"--cudamem-leaks={leaks}", "--cudamem-cycles=off"]
        command += ["--cudamem-baseline=off", f"--cudamem-json={report}", *(["-n", "2"] if number % 2 else [])]
        command += ["--ignore=suites/benchmarks", *paths]
        environ = {**os.environ, SEED: str(number), "PYTHONPATH": _packages(), "OMP_NUM_THREADS": "1"}
        environ |= {"HYPOTHESIS_PROFILE": "few"} | ({} if among is None else {AMONG: str(among.resolve())})
        if device == "cuda" and (card := share(number, os.environ.get(CARDS), torch_api.cuda_device_count())):
            environ[CARDS] = card  # runs at the same time have cards of their own, where there are several
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        *lines, outcome = done.stdout.strip().splitlines()
        text = "\n".join([f"run {number}: {outcome}", *(f"  {line}" for line in lines[-200:] if done.returncode)])
        tests = read_json(report).tests
        if keep is not None and not number:
            shutil.copyfile(report, keep)
        failed = frozenset(test.nodeid for test in tests if test.outcome in ("failed", "error"))
        return Run(text, measured_by_test(test for test in tests if test.outcome == "passed"), failed)


def _packages() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def spreads(runs: Sequence[Taken], metric: str = "requested") -> dict[str, int]:
    """The spread of every test that is in all runs and allocated something, in bytes (or in the unit of the metric)."""
    found: dict[str, int] = {}
    for test in runs[0]:
        if all(test in run for run in runs):
            folded = fold([run[test] for run in runs])
            ends = [one.values[metric] for one in folded if not one.idle and metric in one.values]
            if ends:
                found[test] = max(end.high - end.low for end in ends)
    return found


def alarms_of(runs: Sequence[Taken]) -> Counter[str]:
    """In how many of the later runs each test would have failed by default, had the first one been recorded."""
    first, found, compared = runs[0], Counter[str](), Comparison()
    for run in runs[1:]:
        for test in run.keys() & first.keys():
            before, after = ({one.device: one.values for one in each[test]} for each in (first, run))
            changes = [
                compared.change(metric, before[device][metric], after[device][metric])
                for device in before.keys() & after.keys()
                for metric in compared.metrics
                if metric in before[device] and metric in after[device]
            ]
            found[test] += any(change.grew for change in changes)
    return +found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.spread", description=__doc__)
    parser.add_argument("paths", nargs="*", help="default: those that allocate on the device")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--device", default="cpu", choices=[*PATHS])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--among", type=Path, metavar="REPORT", help="only tests that allocated in an earlier run")
    parser.add_argument("--keep", type=Path, metavar="REPORT", help="where the report of the first run goes")
    given = parser.parse_args(arguments)
    paths = given.paths or PATHS[given.device]
    if given.among is not None and not given.paths:
        paths = sorted({test.partition("::")[0] for test in allocating(given.among)})
    runs: dict[int, Run] = {}
    pool = ThreadPoolExecutor(given.jobs)
    started = {
        pool.submit(measure, number, paths, given.device, given.among, given.keep): number
        for number in range(given.runs)
    }
    try:
        for done in as_completed(started):
            run = runs[started[done]] = done.result()
            print(run.text, flush=True)
    except KeyboardInterrupt:  # those under way heard it too: of them nothing is told, their tests may fail of it
        print("interrupted: the figures are those of the runs so far")
    pool.shutdown(wait=False, cancel_futures=True)
    return _tell([runs[number] for number in sorted(runs)]) if runs else 1


def _tell(runs: Sequence[Run]) -> int:
    taken = [run.taken for run in runs]
    found = spreads(taken)
    exact = sum(1 for spread in found.values() if not spread)
    share = exact / max(1, len(found))
    alarms = alarms_of(taken)
    print(f"{len(found)} tests that allocate, {len(runs)} runs: spread of 0 bytes for {exact} ({share:.1%})")
    print(f"false alarms of baselines that the first run recorded: {alarms.total()}")
    for test, number in alarms.most_common():
        print(f"  alarm in {number} of {len(runs) - 1} runs: {test}")
    for metric in TRACKED[1:]:
        other = spreads(taken, metric)
        same = sum(1 for spread in other.values() if not spread)
        print(f"  {metric}: the same in every run for {same} of {len(other)}")
    for test, times in sorted(Counter(test for run in runs for test in run.failed).items()):
        print(f"  failed in {times} of {len(runs)} runs: {test}")
    for test, spread in sorted(found.items(), key=lambda pair: -pair[1]):
        if spread:
            print(f"  {format_size(spread):>10}  {test}")
    return 0 if share >= 0.95 and not alarms else 1


if __name__ == "__main__":
    raise SystemExit(main())
