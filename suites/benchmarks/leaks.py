"""``python -m suites.benchmarks.leaks``: what the leak check costs a clean test, and how fast a leaking one is judged.

A clean test is timed in three fresh processes in turn: without a leak check (``--cudamem-leaks=off``), with it, and
with a reference that collects garbage, clears the cache and compares as torch's internal check does, before and after
each test. Times are processor times from the end of one test to the end of the next: of each run the time that a tenth
of the tests stay below, and of all rounds the smallest. Others who use the machine only ever add to it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cudamem_testing.show.tables import Column, Table

ROOT = Path(__file__).parents[2]
LIMITS = {"cpu": 0.1, "cuda": 0.3}  # milliseconds that a clean test may take more
JUDGED = 1.0  # seconds for 1,000 leaked tensors, with holders
CONFTEST = """
import gc, json, os, time
import pytest
ends = []

def pytest_runtest_logfinish():
    ends.append(time.process_time())

def pytest_sessionfinish():
    with open(os.environ["BENCH_OUT"], "w") as out:
        json.dump([after - before for before, after in zip(ends, ends[1:])], out)
"""
REFERENCE = """
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    import torch

    def settled():
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return torch.cuda.memory_allocated()
        return 0

    before = settled()
    result = yield
    assert settled() == before
    return result
"""
CLEAN = """
import pytest, torch

@pytest.mark.parametrize("number", range({tests}))
def test_clean(number):
    torch.ones(8, device={device!r}).add_(1)
"""
LEAKING = """
import torch
KEPT = {{}}

def test_before():
    torch.ones(8, device={device!r})

def test_leaks():
    for number in range(1000):
        layer = KEPT.setdefault(number % 50, {{}}).setdefault("layer", [])
        layer.append(torch.ones(256, device={device!r}))
"""


def run(test: str, conftest: str, *arguments: str) -> list[float]:
    """Processor seconds of each test but the first."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "conftest.py").write_text(conftest, encoding="utf-8")
        (place / "test_it.py").write_text(test, encoding="utf-8")
        out = place / "out.json"
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environ = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "cudamem", "-p", "no:cacheprovider", *arguments]
        subprocess.run(
            command, cwd=place, env={**os.environ, **environ, "BENCH_OUT": str(out)}, check=False, capture_output=True
        )
        times: list[float] = json.loads(out.read_text(encoding="utf-8"))
        return times


def measure(device: str, rounds: int, tests: int) -> bool:
    """Time everything, print the table; whether the limits hold."""
    kind, on = device.partition(":")[0], ("--cudamem", f"--cudamem-device={device}")
    clean, few = CLEAN.format(tests=tests, device=device), CLEAN.format(tests=max(5, tests // 40), device=device)
    kinds = {
        "no check": lambda: run(clean, CONFTEST, *on, "--cudamem-leaks=off", "--cudamem-cycles=off"),
        "leak check": lambda: run(clean, CONFTEST, *on, "--cudamem-cycles=off"),
        "collect, clear, compare": lambda: run(few, CONFTEST + REFERENCE),
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    judged = []
    for _ in range(rounds):
        for name, timed in kinds.items():
            found[name].append(statistics.quantiles(timed(), n=10)[0] * 1000)
        judged.append(run(LEAKING.format(device=device), CONFTEST, *on)[0])
    base = min(found["no check"])
    more, limit = min(found["leak check"]) - base, LIMITS[kind]
    rows = [
        ("a clean test: leak check", f"{more:.3f} ms", f"{limit} ms", _word(more <= limit)),
        ("a clean test: collect, clear, compare", f"{min(found['collect, clear, compare']) - base:.1f} ms", "", ""),
        (
            "1,000 leaked tensors judged, with holders",
            f"{min(judged):.2f} s",
            f"{JUDGED} s",
            _word(min(judged) < JUDGED),
        ),
    ]
    names = (Column(device), Column("processor time", "right"), Column("limit", "right"), Column(""))
    print("\n".join(Table(names, tuple(rows)).lines(120)))
    return more <= limit and min(judged) < JUDGED


def _word(passed: bool) -> str:
    return "PASS" if passed else "FAIL"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.leaks", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tests", type=int, default=400)
    options = parser.parse_args(arguments)
    return 0 if measure(options.device, options.rounds, options.tests) else 1


if __name__ == "__main__":
    raise SystemExit(main())
