"""``python -m suites.benchmarks.spread [--runs 20] [paths]``: how far the numbers of each test spread between runs.

Every run takes the tests in another random order; every second one spreads them over two workers of pytest-xdist
(``--workers 0,2``). What is reported is the spread of the peak of requested bytes above start, in bytes, of the tests
that passed in every run and allocated something, and how often baselines recorded in the first run would have failed a
test in another. Hypothesis draws the same few examples in each run.

Left out are tests that start processes, for these have memory of their own, and on a card those that do not use it. A
run of all suites takes minutes, most of them for tests that allocate nothing: ``--runs 1 --reports all`` and then
``--among all/run-00.json`` measures the others alone. Tests that draw random numbers (``A3`` of the zoo of graphs) may
spread, and those in which it matters when the garbage collector comes. On a card, whose blocks do not tell who made
them, leaks are looked for as in any run, so that garbage of one test is not freed in the next.

Runs that have not ended after ``--limit`` seconds are stopped, and the figures are those of the others. ``--reports``
is a folder in which the report of each run that ended is kept: a run whose report is there is not repeated, so that the
same command goes on where it was stopped. (Another state of the code needs another folder.)

Some tests compare counters to the byte themselves, and fail if garbage of others is freed meanwhile, which only a
session around them counts. They are named, and do not count for the spread.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import pytest

from cudamem_testing import torch_api
from cudamem_testing.model.baselines import Measured, fold
from cudamem_testing.model.changes import TRACKED, Comparison, Spread
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.recorders.cards import share
from cudamem_testing.records.update import measured_by_test
from cudamem_testing.report.report_files import read_json

ROOT = Path(__file__).parents[2]
CARDS = "CUDA_VISIBLE_DEVICES"
SEED, AMONG = "CUDAMEM_SPREAD_SEED", "CUDAMEM_SPREAD_AMONG"
ENOUGH = 0.95
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
    """What every test took that passed in one run, and the outcomes of the others."""

    taken: Taken
    others: Mapping[str, str]

    @classmethod
    def read(cls, report: Path) -> Run:
        """The run of a report."""
        tests = read_json(report).tests
        passed = measured_by_test(test for test in tests if test.outcome == "passed")
        return cls(passed, {test.nodeid: test.outcome for test in tests if test.nodeid not in passed})


class Plan(NamedTuple):
    """What is run: ``workers`` of xdist in turn, ``until`` a time of :func:`time.monotonic`."""

    paths: Sequence[str]
    device: str
    among: Path | None
    workers: Sequence[int]
    until: float


@pytest.hookimpl(trylast=True)
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
    taken = Run.read(report).taken
    return frozenset(test for test, measured in taken.items() if not all(one.idle for one in measured))


def measure(number: int, plan: Plan, report: Path) -> str:
    """One run, and its report where it ended in time; what it printed, in short."""
    unfinished = report.with_suffix(".unfinished")
    workers = plan.workers[number % len(plan.workers)]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not subprocess", "-p", "no:cacheprovider"]
    command += ["-p", "no:benchmark", "-p", "no:randomly", "-p", "suites.benchmarks.spread", "--hypothesis-seed=1"]
    leaks = "off" if plan.device == "cpu" else "warn"
    command += ["--cudamem", f"--cudamem-device={plan.device}", f"--cudamem-leaks={leaks}", "--cudamem-cycles=off"]
    command += ["--cudamem-baseline=off", f"--cudamem-json={unfinished}", *(["-n", f"{workers}"] if workers else [])]
    command += ["-o", "addopts=--import-mode=importlib", "--ignore=suites/benchmarks", *plan.paths]
    packages = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, SEED: str(number), "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"}
    environ |= {"HYPOTHESIS_PROFILE": "few"} | ({} if plan.among is None else {AMONG: str(plan.among.resolve())})
    if plan.device == "cuda" and (card := share(number, os.environ.get(CARDS), torch_api.cuda_device_count())):
        environ[CARDS] = card  # runs at the same time have cards of their own, where there are several
    left = plan.until - time.monotonic()
    if left <= 0:
        return f"run {number}: not begun"
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=min(left, 1e6)
        )
    except subprocess.TimeoutExpired:
        return f"run {number}: stopped, it had not ended"
    if done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and unfinished.exists():
        unfinished.rename(report)
    *lines, outcome = done.stdout.strip().splitlines() or ["nothing was printed"]
    said = f"run {number}, {count(workers, 'worker')}: {outcome}"
    rest = [*lines[-200:], *done.stderr.splitlines()[-20:]]
    return "\n".join([said, *(f"  {line}" for line in rest if done.returncode)])


def everywhere(runs: Sequence[Run]) -> dict[str, tuple[Measured, ...]]:
    """What the tests took that passed in every run, with its spread."""
    tests = (test for test in runs[0].taken if all(test in run.taken for run in runs))
    return {test: fold([run.taken[test] for run in runs]) for test in tests}


def spreads(folded: Taken, metric: str = "requested") -> dict[str, int]:
    """The spread of every test that allocated something, in bytes (or in the unit of the metric)."""
    found: dict[str, int] = {}
    for test, measured in folded.items():
        ends = [one.values[metric] for one in measured if not one.idle and metric in one.values]
        if ends:
            found[test] = max(end.high - end.low for end in ends)
    return found


def alarms_of(runs: Sequence[Taken]) -> Counter[str]:
    """In how many of the later runs each test would have failed by default, had the first one been recorded."""
    first, found = runs[0], Counter[str]()
    for run in runs[1:]:
        for test in run.keys() & first.keys():
            before, after = ({one.device: one.values for one in each[test]} for each in (first, run))
            found[test] += any(_grew(before[device], after[device]) for device in before.keys() & after.keys())
    return +found


def possible_alarms(folded: Taken) -> int:
    """How many tests would have failed in some run, had the run been recorded in which they took least."""
    ends = [
        [{name: Spread.of(getattr(end, side)) for name, end in one.values.items()} for side in ("low", "high")]
        for measured in folded.values()
        for one in measured
    ]
    return sum(_grew(low, high) for low, high in ends)


def _grew(before: Mapping[str, Spread], after: Mapping[str, Spread]) -> bool:
    compared = Comparison()
    known = [metric for metric in compared.metrics if metric in before and metric in after]
    return any(compared.change(metric, before[metric], after[metric]).grew for metric in known)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.spread", description=__doc__)
    parser.add_argument("paths", nargs="*", help="default: those that allocate on the device")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--device", default="cpu", choices=[*PATHS])
    parser.add_argument("--workers", default="0,2", help="of pytest-xdist, one run after the other (default: 0,2)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="SECONDS", help="for all runs together")
    parser.add_argument("--among", type=Path, metavar="REPORT", help="only tests that allocated in an earlier run")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="keeps the report of each run, to go on later")
    given = parser.parse_args(arguments)
    until = time.monotonic() + given.limit
    paths = given.paths or PATHS[given.device]
    if given.among is not None and not given.paths:
        paths = sorted({test.partition("::")[0] for test in allocating(given.among)})
    plan = Plan(paths, given.device, given.among, [int(one) for one in given.workers.split(",")], until)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if given.reports is None else given.reports.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        reports = {number: folder / f"run-{number:02}.json" for number in range(given.runs)}
        missing = {number: report for number, report in reports.items() if not report.exists()}
        _each(missing, lambda number: measure(number, plan, missing[number]), given.jobs)
        runs = [Run.read(report) for report in reports.values() if report.exists()]
        if not runs:
            print("no run has ended")
            return 1
        print(*told(runs, given.runs), sep="\n")
        return 0 if len(runs) == given.runs and holds(runs) else 1


def _each(numbers: Mapping[int, object], run: Callable[[int], str], jobs: int) -> None:
    pool = ThreadPoolExecutor(jobs)
    started = [pool.submit(run, number) for number in numbers]
    try:
        for done in as_completed(started):
            print(done.result(), flush=True)
    except KeyboardInterrupt:  # those under way heard it too, and keep no report
        print("interrupted: the figures are those of the runs that ended")
    pool.shutdown(wait=False, cancel_futures=True)


def holds(runs: Sequence[Run]) -> bool:
    """Whether the numbers are as steady as they have to be."""
    found = spreads(everywhere(runs))
    exact = sum(1 for spread in found.values() if not spread)
    return exact >= ENOUGH * len(found) > 0 and not alarms_of([run.taken for run in runs])


def told(runs: Sequence[Run], wanted: int) -> list[str]:
    """The figures of the runs that ended, in lines."""
    folded, number = everywhere(runs), len(runs)
    found, alarms = spreads(folded), alarms_of([run.taken for run in runs])
    exact = sum(1 for spread in found.values() if not spread)
    share = f" ({exact / len(found):.1%})" if found else ""
    lines = [f"{number} of {wanted} runs ended"]
    lines += [f"{count(len(found), 'test')} that allocate, in every run: spread of 0 bytes for {exact}{share}"]
    lines += [f"false alarms of baselines that the first run recorded: {alarms.total()}"]
    lines += [f"  alarm in {times} of {number - 1} runs: {test}" for test, times in alarms.most_common()]
    lines += [f"tests that could alarm, whichever run had recorded: {possible_alarms(folded)}"]
    for metric in TRACKED[1:]:
        other = spreads(folded, metric)
        same = sum(1 for spread in other.values() if not spread)
        lines.append(f"  {metric}: the same in every run for {same} of {len(other)}")
    widest = sorted(found.items(), key=lambda pair: -pair[1])
    lines += [f"  {format_size(spread):>10}  {test}" for test, spread in widest if spread]
    return [*lines, *left_out(runs, folded, found)]


def left_out(runs: Sequence[Run], folded: Taken, found: Mapping[str, int]) -> list[str]:
    """Which tests tell nothing of the spread, and why."""
    others = [pair for run in runs for pair in run.others.items()]
    failed = Counter(test for test, outcome in others if outcome in ("failed", "error"))
    skipped = {test for test, outcome in others if outcome == "skipped"} - failed.keys()
    idle = {test for test, measured in folded.items() if measured and all(one.idle for one in measured)}
    every = {test for run in runs for test in (*run.taken, *run.others)}
    rest = every - found.keys() - failed.keys() - skipped - idle
    taken = [(test, one) for run in runs for test, measured in run.taken.items() for one in measured]
    unsure = Counter(test for test, one in taken if "requested" not in one.values)
    nothing = f"{len(idle)} that {'allocates' if len(idle) == 1 else 'allocate'} nothing"
    return [
        f"left out: {nothing}, {len(skipped)} skipped, {len(failed)} failed, {len(rest)} not measured",
        *(f"  failed in {times} of {len(runs)} runs: {test}" for test, times in sorted(failed.items())),
        *(f"  not measured in every run: {test}" for test in sorted(rest)),
        *(f"  peak not known in {times} of {len(runs)} runs: {test}" for test, times in sorted(unsure.items())),
        "not run: tests that start processes, and on a card those that do not use it",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
