"""``python -m suites.benchmarks.collector``: what the watch over the collector adds to one collection.

The garbage is a module with submodules, gradients and a tensor with its history, in a cycle: about 260 objects, 28
tensors. Tests make it and collect the youngest generation, in runs with the cycle check and without it; the table has
the difference of the thread's processor times, the smallest of all rounds. Known garbage is alike what was read before,
in the same test or an earlier one; of a new kind is a class that was not met before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cudamem_testing.show.tables import Column, Table
from suites.benchmarks.leaks import ROOT

#: Milliseconds that a collection may take more.
KNOWN, NEW = 1.0, 10.0
CONFTEST = """
import json, os, sys

def pytest_unconfigure():
    with open(os.environ["BENCH_OUT"], "w") as out:
        json.dump(sys.modules["test_it"].TIMES, out)
"""
TESTS = """
import gc, time
import pytest, torch

TIMES = {}

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(64, 64)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(6))
        self.step = self.forward

    def forward(self, x):
        for block in self.blocks:
            x = block.lin(x).relu()
        return x

def collected(name, cls):
    gc.collect()
    gc.disable()
    net = cls()
    net(torch.ones(16, 64)).sum().backward()
    net.last = net(torch.ones(16, 64))
    del net
    start = time.thread_time()
    found = gc.collect(0)
    TIMES.setdefault(name, []).append(1000 * (time.thread_time() - start))
    TIMES["objects"] = found
    gc.enable()

def test_first():
    collected("the first of a run", Net)

@pytest.mark.parametrize("number", range(8))
def test_known(number):
    collected("before" if number == 0 else "known from an earlier test", Net)
    collected("before" if number == 0 else "known in the same test", Net)

@pytest.mark.parametrize("number", range(8))
def test_new(number):
    collected("of a new kind", type(f"Net{number}", (Net,), {}))
"""
LIMITS = {
    "known in the same test": KNOWN,
    "known from an earlier test": KNOWN,
    "of a new kind": NEW,
    "the first of a run": NEW,
}


def run(*arguments: str) -> dict[str, list[float]]:
    """Milliseconds of each collection, in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "conftest.py").write_text(CONFTEST, encoding="utf-8")
        (place / "test_it.py").write_text(TESTS, encoding="utf-8")
        out = place / "out.json"
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environ = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        options = ("-q", "-p", "cudamem", "-p", "no:cacheprovider", "--cudamem", "--cudamem-device=cpu")
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        subprocess.run(
            command, cwd=place, env={**os.environ, **environ, "BENCH_OUT": str(out)}, check=False, capture_output=True
        )
        found: dict[str, list[float]] = json.loads(out.read_text(encoding="utf-8"))
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table; 1 if a limit is broken."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.collector", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args(arguments).rounds
    without = [run("--cudamem-cycles=off") for _ in range(rounds)]
    watched = [run() for _ in range(rounds)]
    rows = []
    for name, limit in LIMITS.items():
        base, cost = (min(time for one in runs for time in one[name]) for runs in (without, watched))
        held = () if limit is None else (f"{limit:g} ms", "PASS" if cost - base <= limit else "FAIL")
        rows.append((name, f"{base:.2f} ms", f"{cost:.2f} ms", f"{cost - base:.2f} ms", *(held or ("", ""))))
    names = ("without", "watched", "more", "limit")
    columns = (
        Column(f"garbage of {watched[0]['objects']} objects"),
        *(Column(one, "right") for one in names),
        Column(""),
    )
    print("\n".join(Table(columns, tuple(rows)).lines(120)))
    return int(any(row[-1] == "FAIL" for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
