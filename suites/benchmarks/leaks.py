"""``python -m suites.benchmarks.leaks``: what the leak check costs a clean test, and how fast leaks are judged.

A clean test is timed in three fresh processes in turn: without a leak check (``--cudamem-leaks=off``), with it, and
with a reference that collects garbage, clears the cache and compares as torch's internal check does, before and after
each test. Times are processor times from the end of one test to the end of the next: of each run the time that a tenth
of the tests stay below, and of all rounds the smallest. Others who use the machine only ever add to it.

Repeated leaks are those of a suite that has one cause: 200 tests that each leave 4 MiB in the same list, on the
instance of their class, or in a fixture in the place of what the last test left there. ``transformers`` is imported,
whose objects every collection and every search for holders passes over. Each is compared with the same tests without a
check: the first leak, which also imports what judges, the median of the others, and all of them with the report.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cudamem_testing.show.tables import Column, Table

ROOT = Path(__file__).parents[2]
LIMITS = {"cpu": 0.1, "cuda": 0.3}  # milliseconds that a clean test may take more
JUDGED = 1.0  # seconds for 1,000 leaked tensors, with holders
FIRST, EACH, ALL = 0.4, 0.010, 3.0  # seconds that repeated leaks may take more
OFF = ("--cudamem-leaks=off", "--cudamem-cycles=off")
CONFTEST = """
import gc, json, os, time
import pytest
ends, found = [], []

def pytest_runtest_logfinish():
    ends.append(time.process_time())

def pytest_runtest_logreport(report):
    found.extend(record.nodeid for record in getattr(report, "cudamem", ()) if record.findings)

@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    tests = [after - before for before, after in zip(ends, ends[1:])]
    with open(os.environ["BENCH_OUT"], "w") as out:
        json.dump({"tests": tests, "rest": time.process_time() - ends[-1], "found": len(found)}, out)
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
REPEATED = """
import pytest, torch
KEPT = []

def test_before():
    torch.ones(8, device={device!r})

def taken():
    return torch.empty(2**20, device={device!r})

"""
TESTS = {
    "a list of the module": """
@pytest.mark.parametrize("number", range({tests}))
def test_leaks(number):
    KEPT.append(taken())
""",
    "an attribute of the test class": """
class TestKeeps:
    @pytest.mark.parametrize("number", range({tests}))
    def test_keeps(self, number):
        self.x = taken()
""",
    "a fixture, in the place of the last": """
@pytest.fixture(scope="module")
def store():
    return {{}}

@pytest.mark.parametrize("number", range({tests}))
def test_replaces(number, store):
    store["x"] = taken()
""",
}
"""Tests that leave something, by what holds it."""
AFTER = """
def test_after():  # the fixture ends with the last test
    pass
"""

Row = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Timed:
    """Processor seconds of each test but the first, and from the last one to the end of the run.

    ``found`` is the number of tests with a finding.
    """

    tests: Sequence[float]
    rest: float
    found: int


def run(tests: str | Mapping[str, str], conftest: str, *arguments: str) -> Timed:
    """One run in a fresh process over some files, timed by ``conftest``; one text alone is ``test_it.py``."""
    return Timed(**json.loads(run_in_folder(tests, conftest, *arguments)))


def run_in_folder(tests: str | Mapping[str, str], conftest: str, *arguments: str) -> str:
    """What ``conftest`` wrote to the file that ``BENCH_OUT`` names, in a run in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "conftest.py").write_text(conftest, encoding="utf-8")
        for name, text in ({"test_it.py": tests} if isinstance(tests, str) else tests).items():
            (place / name).write_text(text, encoding="utf-8")
        out = place / "out.json"
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environ = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "cudamem", "-p", "no:cacheprovider", *arguments]
        subprocess.run(
            command, cwd=place, env={**os.environ, **environ, "BENCH_OUT": str(out)}, check=False, capture_output=True
        )
        return out.read_text(encoding="utf-8")


def clean(device: str, rounds: int, tests: int) -> list[Row]:
    """What a check costs a clean test."""
    on = ("--cudamem", f"--cudamem-device={device}")
    many, few = CLEAN.format(tests=tests, device=device), CLEAN.format(tests=max(5, tests // 40), device=device)
    kinds = {
        "no check": lambda: run(many, CONFTEST, *on, *OFF),
        "leak check": lambda: run(many, CONFTEST, *on, "--cudamem-cycles=off"),
        "collect, clear, compare": lambda: run(few, CONFTEST + REFERENCE),
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, timed in kinds.items():
            found[name].append(statistics.quantiles(timed().tests, n=10)[0])
    base, limit = min(found["no check"]), LIMITS[device.partition(":")[0]] / 1000
    return [
        _row("a clean test: leak check", min(found["leak check"]) - base, limit),
        _row("a clean test: collect, clear, compare", min(found["collect, clear, compare"]) - base),
    ]


def judged(device: str, rounds: int, tests: int) -> list[Row]:
    """How long it takes to judge many leaks of one test."""
    source, on = LEAKING.format(device=device), ("--cudamem", f"--cudamem-device={device}")
    runs = [_expecting(1, run(source, CONFTEST, *on)) for _ in range(rounds)]
    return [_row("1,000 leaked tensors judged, with holders", min(one.tests[0] for one in runs), JUDGED)]


def repeated(device: str, rounds: int, tests: int) -> list[Row]:
    """What tests cost that leave something, one after the other."""
    if find_spec("transformers") is None:
        raise RuntimeError("repeated leaks are timed beside transformers: pip install transformers")
    number, conftest = max(3, tests // 2), f"{CONFTEST}\nimport transformers\n"
    on = ("--cudamem", f"--cudamem-device={device}")
    rows: list[Row] = []
    for holder, test in TESTS.items():
        source = (REPEATED + test + AFTER).format(device=device, tests=number)
        # A card's counters are even where a block has taken the place of another: then nothing is looked at.
        found = 1 if "replaces" in test and device.startswith("cuda") else number
        without: list[Timed] = []
        checked: list[Timed] = []
        for _ in range(rounds):
            without.append(_expecting(0, run(source, conftest, *on, *OFF)))
            checked.append(_expecting(found, run(source, conftest, *on)))

        rows += [
            (f"{number} tests that leave 4 MiB in {holder}", "", "", ""),
            _row("  the first", _more(without, checked, lambda timed: timed.tests[0]), FIRST),
            _row("  each of the others, median", _more(without, checked, _each), EACH),
            _row("  all, with the report", _more(without, checked, _all), ALL),
        ]
    return rows


PARTS: Mapping[str, Callable[[str, int, int], list[Row]]] = {"clean": clean, "judged": judged, "repeated": repeated}


def measure(device: str, rounds: int, tests: int, chosen: Sequence[str] = tuple(PARTS)) -> bool:
    """Time the chosen parts, print the table; whether the limits hold."""
    rows = [row for name in chosen for row in PARTS[name](device, rounds, tests)]
    names = (Column(f"processor time on {device}"), Column("more", "right"), Column("limit", "right"), Column(""))
    print("\n".join(Table(names, tuple(rows)).lines(120)))
    return all(row[-1] != "FAIL" for row in rows)


def _expecting(findings: int, timed: Timed) -> Timed:
    """The times of a run that found what it should."""
    if timed.found != findings:
        raise RuntimeError(f"{timed.found} tests have a finding, not {findings}")
    return timed


def _each(timed: Timed) -> float:
    """Of the tests between the first that leaves something and the one after the last."""
    return statistics.median(timed.tests[1:-1])


def _all(timed: Timed) -> float:
    return sum(timed.tests) + timed.rest


def _more(without: Sequence[Timed], checked: Sequence[Timed], of: Callable[[Timed], float]) -> float:
    """What checking adds, by the least of all rounds."""
    return min(map(of, checked)) - min(map(of, without))


def _row(name: str, seconds: float, limit: float | None = None) -> Row:
    allowed, word = ("", "") if limit is None else (_time(limit), "PASS" if seconds <= limit else "FAIL")
    return name, _time(seconds), allowed, word


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if abs(seconds) >= 0.1 else f"{seconds * 1000:.2f} ms"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.leaks", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tests", type=int, default=400, help="clean tests; there are half as many repeated leaks")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    options = parser.parse_args(arguments)
    return 0 if measure(options.device, options.rounds, options.tests, options.only) else 1


if __name__ == "__main__":
    raise SystemExit(main())
