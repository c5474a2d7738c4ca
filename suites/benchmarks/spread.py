"""``python -m suites.benchmarks.spread [--runs 20] [paths]``: how far the numbers of each test spread between runs.

Every run takes the tests in another order; every second one spreads them over two workers of pytest-xdist. What is
reported is the spread of the peak of requested bytes above start, in bytes, of the tests that passed in every run and
allocated something. Hypothesis draws the same examples in each run.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

from cudamem_testing.model.baselines import Measured, fold
from cudamem_testing.model.changes import Comparison
from cudamem_testing.model.sizes import format_size
from cudamem_testing.report.files import read_json

ROOT = Path(__file__).parents[2]
PATHS = ("suites/tour", "suites/snapshots/test_programs.py", "suites/windows", "suites/cycles/test_collect.py")
SEED = "CUDAMEM_SPREAD_SEED"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As a plugin of the runs: the order of the seed, the same in every worker."""
    items.sort(key=lambda item: item.nodeid)
    random.Random(os.environ[SEED]).shuffle(items)


def measure(number: int, paths: Sequence[str], device: str) -> tuple[str, dict[str, tuple[Measured, ...]]]:
    """One run: how it ended, and what every test took that passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not subprocess", "-p", "no:cacheprovider"]
        command += ["-p", "suites.benchmarks.spread", "--hypothesis-seed=1", "-o", "addopts=--import-mode=importlib"]
        command += ["--cudamem", f"--cudamem-device={device}", "--cudamem-leaks=off", "--cudamem-cycles=off"]
        command += ["--cudamem-baseline=off", f"--cudamem-json={report}", *(["-n", "2"] if number % 2 else []), *paths]
        environ = {**os.environ, SEED: str(number), "PYTHONPATH": _packages(), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        *lines, outcome = done.stdout.strip().splitlines()
        text = "\n".join([f"run {number}: {outcome}", *(f"  {line}" for line in lines[-200:] if done.returncode)])
        return text, {test.nodeid: test.measured for test in read_json(report).tests if test.outcome == "passed"}


def _packages() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def spreads(runs: Sequence[Mapping[str, tuple[Measured, ...]]]) -> dict[str, int]:
    """The spread of every test that is in all runs and allocated something, in bytes."""
    found: dict[str, int] = {}
    for test in runs[0]:
        if all(test in run for run in runs):
            folded = fold([run[test] for run in runs])
            ends = [one.values["requested"] for one in folded if not one.idle and "requested" in one.values]
            if ends:
                found[test] = max(end.high - end.low for end in ends)
    return found


def false_alarms(runs: Sequence[Mapping[str, tuple[Measured, ...]]]) -> int:
    """How often a later run would have failed a test by the default tolerance, had the first one been recorded."""
    first, number = runs[0], 0
    for run in runs[1:]:
        for test in run.keys() & first.keys():
            before, after = (
                {one.device: one.values["requested"] for one in each[test] if "requested" in one.values}
                for each in (first, run)
            )
            changes = [
                Comparison().change("requested", before[device], after[device])
                for device in before.keys() & after.keys()
            ]
            number += any(change.grew for change in changes)
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.spread", description=__doc__)
    parser.add_argument("paths", nargs="*", default=list(PATHS))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    given = parser.parse_args(arguments)
    runs: list[dict[str, tuple[Measured, ...]]] = []
    pool = ThreadPoolExecutor(given.jobs)
    started = [pool.submit(measure, number, given.paths, given.device) for number in range(given.runs)]
    try:
        for run in as_completed(started):
            text, measured = run.result()
            print(text, flush=True)
            runs.append(measured)
    except KeyboardInterrupt:  # those under way heard it too: of them nothing is told, their tests may fail of it
        print("interrupted: the figures are those of the runs so far")
    pool.shutdown(wait=False, cancel_futures=True)
    if not runs:
        return 1
    found = spreads(runs)
    exact = sum(1 for spread in found.values() if not spread)
    share = exact / max(1, len(found))
    print(f"{len(found)} tests that allocate, {len(runs)} runs: spread of 0 bytes for {exact} ({share:.1%})")
    print(f"false alarms of baselines that the first run recorded: {false_alarms(runs)}")
    for test, spread in sorted(found.items(), key=lambda pair: -pair[1]):
        if spread:
            print(f"  {format_size(spread):>10}  {test}")
    return 0 if share >= 0.95 else 1


if __name__ == "__main__":
    raise SystemExit(main())
