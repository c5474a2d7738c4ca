"""``python -m suites.benchmarks.soak``: what 1,000 leaking and 1,000 cyclic tests cost, of one cause and of 1,000.

Each suite runs in fresh processes with and without the checks (``--cudamem-leaks=off --cudamem-cycles=off``), and the
difference of their processor times, from the end of the first test to the end of the run with its report, is held to
``MOST`` seconds. Tests of many causes lie in 20 files, each with a function that allocates and an object that holds of
its own. ``--heavy`` imports ``transformers``, whose objects every search and collection passes over.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from cudamem_testing.show.tables import Column, Table
from suites.benchmarks.leaks import CONFTEST, OFF, Timed, run

MOST = 20.0  # seconds that 1,000 tests may take more
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


def _all(timed: Timed) -> float:
    return sum(timed.tests) + timed.rest


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.soak", description=__doc__)
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--heavy", action="store_true", help="with transformers imported")
    parser.add_argument("--only", nargs="+", default=("leaks", "cycles"), help="words of the suites to time")
    options = parser.parse_args(arguments)
    return 0 if measure(options.tests, options.rounds, options.heavy, options.only) else 1


if __name__ == "__main__":
    raise SystemExit(main())
