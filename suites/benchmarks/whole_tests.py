"""Tests of ``small_tests.py`` as pytest runs them under ``--cudamem``: on the CPU, and on the simulated card."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from suites.benchmarks.plugin_overhead import ARGUMENTS, environment

ROUNDS, TIMES, FIRST = 3, 40, 3
TEST = """
import os
import pytest
from suites.benchmarks.small_tests import TESTS

@pytest.mark.parametrize("number", range({times}))
@pytest.mark.parametrize("name", TESTS)
def test_small(name, number):
    TESTS[name](os.environ["DEVICE_OF_TESTS"])
"""
CONFTEST = """
import collections, json, statistics, time
import pytest

taken = collections.defaultdict(list)

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    start = time.perf_counter()
    done = yield
    taken[item.callspec.params["name"]].append(time.perf_counter() - start)
    return done

def pytest_sessionfinish():
    with open("taken.json", "w") as out:
        json.dump({{name: statistics.median(times[{first}:]) for name, times in taken.items()}}, out)
"""


def ratios() -> Iterator[tuple[str, float]]:
    """Of each test, its time on the card in times on the CPU: by the clock, with setup and teardown.

    The median of some pairs of runs.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_small.py").write_text(TEST.format(times=TIMES))
        (folder / "conftest.py").write_text(CONFTEST.format(first=FIRST))
        pairs = [(_run(folder, "cpu", "cpu"), _run(folder, "cuda", "simulated:h100")) for _ in range(ROUNDS)]
    for test in pairs[0][0]:
        yield test, statistics.median(on_card[test] / on_cpu[test] for on_cpu, on_card in pairs)


def _run(folder: Path, device: str, measured: str) -> Mapping[str, float]:
    """The median time of each test, in seconds."""
    # All cores: where passes run in a thread of their own, that has threads of its own as well.
    chosen = {"OMP_NUM_THREADS": str(os.cpu_count()), "DEVICE_OF_TESTS": device}
    command = [sys.executable, "-m", "pytest", *ARGUMENTS, "--cudamem", f"--cudamem-device={measured}"]
    done = subprocess.run(
        command, cwd=folder, env={**environment(folder), **chosen}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the measured run failed: {' '.join(command)}\n{done.stdout}{done.stderr}")
    found: dict[str, float] = json.loads((folder / "taken.json").read_text())
    return found
