"""A process with millions of objects: what a search for holders takes beside it, in memory and in time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from cudamem_testing.wording import details
from suites.plugin.inner import run_outer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.subprocess,
    pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc"),
]
MOST = 1.2
SECONDS = 7.0  # for one test: the search's five, and the collections around it
CONFTEST = """
    import json, time

    LAST, TIMES = [0.0], []

    def pytest_runtest_setup():
        LAST[0] = time.process_time()

    def pytest_runtest_logfinish():
        TIMES.append(time.process_time() - LAST[0])

    def pytest_unconfigure():
        with open("/proc/self/status") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        with open("taken.json", "w") as out:
            json.dump([peak, max(TIMES)], out)
"""
HEAD = """
import pytest, sys, types, weakref, torch

class Node:
    __slots__ = ("next", "__weakref__")
    def __init__(self, next): self.next = next

OTHER = sys.modules["other"] = types.ModuleType("other")
OTHER.kept, SHARED, KEPT = [], {}, []

def make(): return torch.zeros(100_000)
"""
TEST = """
@pytest.mark.parametrize("number", range(3))
def test_leaks(number): keep(number)
"""
MILLIONS = "DATA = [{'id': number, 'v': [number]} for number in range(1_000_000)]\n"
HEAPS = {
    "in a list of the test's module": f"{MILLIONS}def keep(number): KEPT.append(make())",
    "in another module": f"{MILLIONS}def keep(number): OTHER.kept.append(make())",
    "in one of a million dictionaries": f"{MILLIONS}def keep(number): DATA[500 + number]['t'] = make()",
    "in what a million lists share": """
DATA = [{"id": number, "v": [SHARED]} for number in range(1_000_000)]
def keep(number): SHARED[number] = make()
""",
    "held by C++": f"""
{MILLIONS}
def keep(number):
    weight = torch.zeros(100_000, requires_grad=True)
    weight.grad = make()
    (weight * weight).sum().backward(create_graph=True)
""",
}
WIDE = """
DATA = [{"id": number, "v": [number]} for number in range(500_000)]
nodes = [Node(None)]
FIRST = weakref.ref(nodes[0])
while len(nodes) < 400_000:
    nodes = [Node(node) for node in nodes for _ in range(2)]
OTHER.kept.append([[[nodes]]])
del nodes

def keep(number): FIRST().next = (make(), FIRST().next)
"""


def taken(pytester: pytest.Pytester, heap: str, *arguments: str) -> tuple[int, float]:
    """The peak of the process in KiB, and the longest test in seconds of processor time."""
    run_outer(pytester, {"conftest.py": CONFTEST, "test_it.py": HEAD + heap + TEST}, *arguments, report=False)
    peak, longest = json.loads((pytester.path / "taken.json").read_text())
    return peak, longest


@pytest.mark.parametrize("heap", HEAPS.values(), ids=HEAPS)
def test_a_search_takes_little_beside_the_process(
    heap: str, pytester: pytest.Pytester, figure: Callable[[str], None]
) -> None:
    plain, _ = taken(pytester, heap)
    measured, longest = taken(pytester, heap, "--cudamem", "--cudamem-device=cpu")
    figure(f"{measured / plain:.2f} times the memory, {longest:.1f} s for a test that leaks, with 2 million objects")
    assert measured <= MOST * plain, (measured, plain)
    assert longest < SECONDS


def test_a_search_that_ends_at_its_budget_says_so(pytester: pytest.Pytester) -> None:
    """Behind 400,000 objects on the way to the root; what was not found is not pruned."""
    plain, _ = taken(pytester, WIDE)
    line = {"cause": "leak | reachable | test_it.py::make | x", "device": "cpu", "bytes": 1, "tests": ["test_it.py"]}
    (pytester.path / "__cudamem__").mkdir()
    known = pytester.path / "__cudamem__" / "known.jsonl"
    known.write_text(json.dumps(line) + "\n")
    inner = run_outer(pytester, {}, "--cudamem", "--cudamem-device=cpu", "--cudamem-prune")
    peak, longest = json.loads((pytester.path / "taken.json").read_text())
    for test in inner.run.tests:
        (found,) = test.findings
        assert found.verdict.value == "unattributed"
        assert details(found)[-1] == "   note: the search stopped at its limit of 30,000 objects"
    assert json.loads(known.read_text())["cause"] == line["cause"]
    assert peak <= MOST * plain, (peak, plain)
    assert longest < SECONDS
