"""``python -m suites.benchmarks.soak``: what 1,000 leaking and 1,000 cyclic tests cost, of one cause and of 1,000.

Each suite runs in fresh processes with and without the checks (``--cudamem-leaks=off --cudamem-cycles=off``), and the
difference of their processor times, from the end of the first test to the end of the run with its report, is held to
``MOST`` seconds. Tests of many causes lie in 20 files, each with a function that allocates and an object that holds of
its own. ``--heavy`` imports ``transformers``, whose objects every search and collection passes over.

``--only many`` runs 20,000 clean tests in one process, without and with ``--cudamem``, and holds to limits: how much
more memory a test takes that has run, how much of that no record reaches, how the time of the last tenth of the tests
compares with that of the first, and what writing the two reports takes beside the records.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from cudamem_testing.show.tables import Column, Table
from suites.benchmarks.leaks import CONFTEST, OFF, Timed, run, run_in_folder

MOST = 20.0  # seconds that 1,000 tests may take more
MANY = 20_000
MOST_KIB, MOST_UNREACHED_KIB = 20.0, 1.0  # that a clean test may leave more; of it, beside the records
MOST_SLOWER = 1.15  # times the first tenth of the tests that the last one may take
MOST_FOR_REPORTS = 1.0  # times the records' own memory that writing a report may take more
FILES = 20
HEAD = "import pytest, torch\n\ndef test_before():\n    torch.ones(8)\n"
ONE_LEAK = """
KEPT = []

@pytest.mark.parametrize("number", range({tests}))
def test_leaks(number):
    KEPT.append(torch.empty(2**16))
"""
ONE_CYCLE = """
class Node:
    def __init__(self):
        self.me, self.state = self, torch.empty(2**16)

@pytest.mark.parametrize("number", range({tests}))
def test_makes_a_cycle(number):
    Node()
"""
A_LEAK = """
KEPT_{n} = []

def allocate_{n}():
    return torch.empty(2**16)

def test_leaks_{n}():
    KEPT_{n}.append(allocate_{n}())
"""
A_CYCLE = """
class Node{n}:
    def __init__(self):
        self.me, self.state = self, torch.empty(2**16)

def test_makes_a_cycle_{n}():
    Node{n}()
"""
CLEAN = """
import pytest, torch

@pytest.mark.parametrize("number", range({tests}))
def test_clean(number):
    torch.ones(8).add_(1)
"""
#: Notes the time after each test, memory after the first 200 and the last, what the records take in the end, and the
#: peak of writing each report.
WATCHING = """
import gc, json, os, sys, time, types
import pytest
ends, records, resident, peaks = [], [], [], {}

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

def pytest_runtest_logfinish():
    ends.append(time.process_time())
    if len(ends) in (200, TESTS):
        gc.collect()
        resident.append(status("VmRSS"))

def pytest_runtest_logreport(report):
    records.extend(getattr(report, "cudamem", ()))

def reached():
    seen, todo, size = set(), list(records), 0
    while todo:
        one = todo.pop()
        if id(one) not in seen and not isinstance(one, (type, types.ModuleType, types.FunctionType)):
            seen.add(id(one))
            size += sys.getsizeof(one)
            todo += gc.get_referents(one)
    return size

def watched(write):
    def wrapped(run, path):
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before, started = status("VmRSS"), time.process_time()
        write(run, path)
        peaks[path.suffix] = status("VmHWM") - before, time.process_time() - started, path.stat().st_size
    return wrapped

def pytest_sessionfinish():
    from cudamem_testing.report import report_files as files
    files.write_json, files._write_page = watched(files.write_json), watched(files._write_page)

@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    with open(os.environ["BENCH_OUT"], "w") as out:
        found = {"ends": ends, "resident": resident, "records": len(records), "reached": reached(), "peaks": peaks}
        json.dump(found, out)
"""


def suites(tests: int) -> Mapping[str, Mapping[str, str]]:
    """The files of each suite, by its name."""

    def spread(text: str) -> dict[str, str]:
        share = range(max(1, tests // FILES))
        return {
            f"test_{file:02}.py": HEAD + "".join(text.format(n=f"{file}_{n}") for n in share) for file in range(FILES)
        }

    return {
        "leaks of one cause": {"test_it.py": HEAD + ONE_LEAK.format(tests=tests)},
        "leaks of as many causes": spread(A_LEAK),
        "cycles of one cause": {"test_it.py": HEAD + ONE_CYCLE.format(tests=tests)},
        "cycles of as many causes": spread(A_CYCLE),
    }


def measure(tests: int, rounds: int, heavy: bool, chosen: Sequence[str]) -> bool:
    """Time the suites, print the table; whether the limit holds."""
    conftest = f"{CONFTEST}\nimport transformers\n" if heavy else CONFTEST
    limit = MOST * tests / 1000
    rows, passed = [], True
    for name, files in suites(tests).items():
        if not any(word in name for word in chosen):
            continue
        without, checked = [], []
        for _ in range(rounds):
            without.append(run(files, conftest, "--cudamem", "--cudamem-device=cpu", *OFF))
            checked.append(run(files, conftest, "--cudamem", "--cudamem-device=cpu"))
        if found := {one.found for one in checked} - {tests // FILES * FILES}:
            raise RuntimeError(f"{name}: {found} tests have a finding, not {tests}")
        base, cost = min(map(_all, without)), min(map(_all, checked))
        word = "PASS" if cost - base <= limit else "FAIL"
        passed = passed and word == "PASS"
        rows.append((name, f"{base:.1f} s", f"{cost:.1f} s", f"{cost - base:.1f} s", f"{limit:g} s", word))
    names = ("without", "with checks", "more", "limit")
    columns = (Column(f"{tests:,} tests"), *(Column(one, "right") for one in names), Column(""))
    print("\n".join(Table(columns, tuple(rows)).lines(120)))
    return passed


def many(tests: int) -> bool:
    """Run clean tests in one process and print what they leave and take; whether the limits hold."""
    conftest = WATCHING.replace("TESTS", str(tests))
    reports = ("--cudamem-json=r.json", "--cudamem-html=r.html")
    alone, checked = (
        json.loads(run_in_folder(CLEAN.format(tests=tests), conftest, *options))
        for options in ((), ("--cudamem", "--cudamem-device=cpu", *reports))
    )
    if checked["records"] != tests:
        raise RuntimeError(f"{checked['records']} tests have a record, not {tests}")
    if {*checked["peaks"]} != {".json", ".html"}:
        raise RuntimeError(f"reports were written to {[*checked['peaks']]}")
    more = (_kept(checked) - _kept(alone)) / 1024
    data = checked["reached"] / tests / 1024
    first, last = map(_tenth, _times(checked))
    rows = [
        _limited("memory that a test leaves", more, MOST_KIB, "KiB"),
        _limited("  of it, beside its record", more - data, MOST_UNREACHED_KIB, "KiB"),
        _limited("the last tenth's time, in that of the first", last / first, MOST_SLOWER, "times"),
        *(
            _limited(
                f"writing {name[1:]} ({size >> 20} MiB, {seconds:.1f} s)",
                peak / checked["reached"],
                MOST_FOR_REPORTS,
                "times the records",
            )
            for name, (peak, seconds, size) in checked["peaks"].items()
        ),
    ]
    columns = (Column(f"{tests:,} clean tests"), Column("", "right"), Column("limit", "right"), Column(""))
    print("\n".join(Table(columns, tuple(rows)).lines(120)))
    for name, found in (("without the checks", alone), ("with them", checked)):
        texts = [f"{_tenth(some) * 1000:.2f} ms (mean {statistics.mean(some) * 1000:.2f})" for some in _times(found)]
        print(f"a test {name}: {texts[0]} at first, {texts[1]} at last")
    print(f"a record: {data:.2f} KiB")
    return all(row[-1] == "PASS" for row in rows)


def _kept(found: Mapping[str, Any]) -> float:
    """Bytes of resident memory that a test leaves, after the first 200."""
    before, after = found["resident"]
    return float(after - before) / (len(found["ends"]) - 200)


def _times(found: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Processor seconds of each test of the first tenth, after 200, and of the last one."""
    ends = found["ends"]
    share = len(ends) // 10
    return tuple(
        [after - before for before, after in pairwise(some)] for some in (ends[200 : 200 + share], ends[-share:-1])
    )


def _tenth(seconds: Sequence[float]) -> float:
    """What a tenth of the tests stays below: others who use the machine only ever add to it."""
    return statistics.quantiles(seconds, n=10)[0]


def _limited(name: str, value: float, limit: float, unit: str) -> tuple[str, str, str, str]:
    return name, f"{value:.2f} {unit}", f"{limit:g}", "PASS" if value <= limit else "FAIL"


def _all(timed: Timed) -> float:
    return sum(timed.tests) + timed.rest


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.soak", description=__doc__)
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--heavy", action="store_true", help="with transformers imported")
    parser.add_argument("--only", nargs="+", default=("leaks", "cycles"), help="words of the suites to time, or many")
    parser.add_argument("--many", type=int, default=MANY, help="clean tests of --only many")
    options = parser.parse_args(arguments)
    if "many" in options.only:
        return 0 if many(options.many) else 1
    return 0 if measure(options.tests, options.rounds, options.heavy, options.only) else 1


if __name__ == "__main__":
    raise SystemExit(main())
