"""A process with very many objects: what a search for holders takes beside it, in memory and in time.

With ``HYPOTHESIS_PROFILE=full`` beside a million dictionaries and lists, else beside a third of that.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cudamem_testing.wording.findings import details
from suites.plugin.inner import run_outer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.subprocess,
    pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc"),
]
PAIRS = 500_000 if os.environ.get("HYPOTHESIS_PROFILE") == "full" else 160_000
MOST = 1.2
SECONDS = 4.0  # for one test: twice what the slowest takes
CONFTEST = """
    import json, time

    PEAKS, LAST, TIMES = [], [0.0], {}

    def peak_kib():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

    def pytest_collection_finish():
        PEAKS.append(peak_kib())

    def pytest_runtest_setup():
        LAST[0] = time.process_time()

    def pytest_runtest_logfinish(nodeid):
        TIMES[nodeid.rpartition("::")[2]] = time.process_time() - LAST[0]

    def pytest_unconfigure():
        PEAKS.append(peak_kib())
        with open("taken.json", "w") as out:
            json.dump([*PEAKS, TIMES], out)
"""
HEAD = """
import gc, pytest, sys, types, weakref, torch

class Node:
    __slots__ = ("next", "__weakref__")
    def __init__(self, next): self.next = next

OTHER = sys.modules["other"] = types.ModuleType("other")
OTHER.kept, SHARED, KEPT = [], {}, []

def make(): return torch.zeros(100_000)
gc.disable()  # building takes a third of the time
"""
#: Dictionaries and as many lists, which share one more dictionary.
MILLION = f"""
DATA = [{{"id": number, "v": [SHARED]}} for number in range({PAIRS})]
gc.enable()

def in_a_list(number): KEPT.append(make())
def in_another_module(number): OTHER.kept.append(make())
def in_one_of_the_dictionaries(number): DATA[500 + number]['t'] = make()
def in_what_all_lists_share(number): SHARED[number] = make()
def held_by_cpp(number):
    weight = torch.zeros(100_000, requires_grad=True)
    weight.grad = make()
    (weight * weight).sum().backward(create_graph=True)

WAYS = [in_a_list, in_another_module, in_one_of_the_dictionaries, in_what_all_lists_share, held_by_cpp]

@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("keep", WAYS)
def test_leaks(keep, number): keep(number)
"""
CAUSES = {
    "in_a_list": "reachable | test_it.py::make | module test_it > KEPT (list)[*]",
    "in_another_module": "reachable | test_it.py::make | module other > kept (list)[*]",
    "in_one_of_the_dictionaries": "reachable | test_it.py::make | module test_it > DATA (list)[*] > dict[*]",
    "in_what_all_lists_share": "reachable | test_it.py::make | module test_it > SHARED (dict)[*]",
    "held_by_cpp": "held by C++ | test_it.py::held_by_cpp",
}
WIDE = """
DATA = [{"id": number, "v": [number]} for number in range(100_000)]
nodes = [Node(None)]
FIRST = weakref.ref(nodes[0])
while len(nodes) < 100_000:
    nodes = [Node(node) for node in nodes for _ in range(2)]
OTHER.kept.append([[[nodes]]])
del nodes
gc.enable()

@pytest.mark.parametrize("number", range(2))
def test_leaks(number): FIRST().next = (make(), FIRST().next)
"""


def taken(folder: Path) -> tuple[int, int, dict[str, float]]:
    """The peak of the process in KiB before its tests and at its end, and the processor seconds of each test."""
    before, peak, times = json.loads((folder / "taken.json").read_text())
    return before, peak, times


def test_a_search_takes_little_beside_the_process(pytester: pytest.Pytester, figure: Callable[[str], None]) -> None:
    """For all kinds of holders among them, in one process."""
    files = {"conftest.py": CONFTEST, "test_it.py": HEAD + MILLION}
    inner = run_outer(pytester, files, "--cudamem", "--cudamem-device=cpu", "-Wignore:Using backward", whole_heap=True)
    assert inner.last == "10 passed, 10 errors"
    for way, cause in CAUSES.items():
        found = [finding for test in inner.run.tests if way in test.nodeid for finding in test.findings]
        assert {finding.cause for finding in found} == {f"leak | {cause}"}
    before, peak, times = taken(pytester.path)
    for way in CAUSES:
        longest = max(seconds for name, seconds in times.items() if way in name)
        figure(f"{longest:.1f} s for a test that leaks {way.replace('_', ' ')} beside {2 * PAIRS:,} objects")
        assert longest < SECONDS
    figure(f"{peak / before:.2f} times the memory of a process with {2 * PAIRS:,} objects for searches in it")
    assert peak <= MOST * before, (peak, before)


def test_a_search_that_ends_at_its_budget_says_so(pytester: pytest.Pytester) -> None:
    """Behind 100,000 objects on the way to the root; what was not found is not pruned."""
    line = {"cause": "leak | reachable | test_it.py::make | x", "device": "cpu", "bytes": 1, "tests": ["test_it.py"]}
    (pytester.path / "__cudamem__").mkdir()
    known = pytester.path / "__cudamem__" / "known.jsonl"
    known.write_text(json.dumps(line) + "\n")
    files = {"conftest.py": CONFTEST, "test_it.py": HEAD + WIDE}
    inner = run_outer(pytester, files, "--cudamem", "--cudamem-device=cpu", "--cudamem-prune", whole_heap=True)
    for test in inner.run.tests:
        (found,) = test.findings
        assert found.verdict.value == "unattributed"
        assert details(found)[-1] == "   note: the search stopped at its limit of 30,000 objects"
    assert json.loads(known.read_text())["cause"] == line["cause"]
    before, peak, times = taken(pytester.path)
    assert peak <= MOST * before, (peak, before)
    assert max(times.values()) < SECONDS
