"""Budgets of what a test retains: what failures hold and what the collector frees is not retained."""

from __future__ import annotations

import pytest

from cudamem_testing.model.findings import Kind
from cudamem_testing.model.sizes import format_size
from cudamem_testing.wording.findings import details, text, title
from suites.plugin.inner import KIB

FAILED = """
    import pytest, torch
    from unittest import TestCase

    KEPT = []

    @pytest.fixture
    def broken():
        KEPT.append(torch.empty(256))
        raise LookupError

    @pytest.fixture
    def breaks():
        yield
        raise OSError

    @pytest.mark.memory_budget(peak="1KiB", retained=0)
    def test_fails():
        KEPT.append(torch.empty(3 * 256))
        held = torch.empty(256)
        assert 0

    @pytest.mark.memory_budget(retained=0)
    def test_fails_with_all_in_its_frames():
        held, garbage = torch.empty(2**16), []
        garbage.append([garbage, torch.empty(2**16)])
        assert 0

    @pytest.mark.memory_budget(at_least={"retained": "8KiB"})
    def test_fails_under():
        KEPT.append(torch.empty(2 * 256))
        assert 0

    @pytest.mark.memory_budget(retained=0)
    def test_skips():
        KEPT.append(torch.empty(256))
        pytest.skip("the rest")

    @pytest.mark.xfail
    @pytest.mark.memory_budget(retained=0)
    def test_expected():
        KEPT.append(torch.empty(256))
        assert 0

    @pytest.mark.memory_budget(retained=0)
    def test_setup_fails(broken): pass

    @pytest.mark.memory_budget(retained=0)
    def test_fails_twice(breaks):
        KEPT.append(torch.empty(256))
        assert 0

    @pytest.mark.memory_budget(retained=0)
    class TestUnit(TestCase):
        def test_unit(self):
            KEPT.append(torch.empty(256))
            held = torch.empty(256)
            self.fail()
"""
BELOW = "------------------------------- cudamem teardown -------------------------------"


@pytest.mark.parametrize("flags", [(), ("--cudamem",), ("--cudamem", "--cudamem-leaks=off", "--cudamem-cycles=off")])
def test_retained_is_shown_below_the_failure_of_the_test(run_inner, flags):
    """Frames of the traceback are let go of first, and garbage is collected: what they held is not retained."""
    inner = run_inner(FAILED, *flags, "-rA")
    assert inner.last == "5 failed, 1 skipped, 1 xfailed, 2 errors"
    start = inner.test("test_fails").whole[0].start
    levels = f"start {format_size(start)}, end {format_size(start + 3 * KIB)}"
    own = inner.section("test_fails")
    peak, below = (
        own.index("----------------------------------- cudamem ------------------------------------"),
        own.index(BELOW),
    )
    assert own[peak + 1] == "cudamem: peak 4.0 KiB above start is over its budget of 1.0 KiB by 3.0 KiB (cpu)"
    assert own[below + 1 :] == [
        "cudamem: retained 3.0 KiB is over its budget of 0 B by 3.0 KiB (test, cpu)",
        levels,
        "still live: 3.0 KiB in 1 block",
        "   3.0 KiB   1 block  test_it.py:18 in test_fails",
        "                      | KEPT.append(torch.empty(3 * 256))",
    ]
    assert [(title(one), one.severity.value) for one in inner.test("test_fails").findings] == [
        ("cudamem: peak 4.0 KiB above start is over its budget of 1.0 KiB by 3.0 KiB (cpu)", "fail"),
        ("cudamem: retained 3.0 KiB is over its budget of 0 B by 3.0 KiB (test, cpu)", "warn"),
    ]
    told = {
        title: [line for line in inner.section(title) if line.startswith("cudamem: retained")]
        for title in (
            "test_fails_with_all_in_its_frames",
            "test_fails_under",
            "test_fails_twice",
            "ERROR at setup of test_setup_fails",
            "ERROR at teardown of test_fails_twice",
            "TestUnit.test_unit",
        )
    }
    over = "cudamem: retained 1.0 KiB is over its budget of 0 B by 1.0 KiB (test, cpu)"
    assert told == {
        "test_fails_with_all_in_its_frames": [],
        "test_fails_under": ["cudamem: retained 2.0 KiB is under its lower bound of 8.0 KiB by 6.0 KiB (test, cpu)"],
        "test_fails_twice": [],
        "ERROR at setup of test_setup_fails": [],
        "ERROR at teardown of test_fails_twice": [over],
        "TestUnit.test_unit": [over],
    }
    budget = {
        test.nodeid[12:]: [title(one) for one in test.findings if one.kind is Kind.BUDGET] for test in inner.run.tests
    }
    assert {name: budget[name] for name in ("test_skips", "test_expected", "test_setup_fails", "test_fails_twice")} == {
        "test_skips": [],
        "test_expected": [],
        "test_setup_fails": [],
        "test_fails_twice": [over],
    }


def test_retained_is_not_judged_while_a_debugger_holds_frames(run_inner):
    files = {
        "silent.py": """
            import pdb
            class Debugger(pdb.Pdb):
                def interaction(self, frame, error): pass
        """,
        "test_it.py": FAILED,
    }
    inner = run_inner(files, "--pdb", "--pdbcls=silent:Debugger", "-k", "test_fails_under or test_skips")
    assert inner.last == "1 failed, 1 skipped, 6 deselected"
    assert [test.findings for test in inner.run.tests] == [(), ()]
    assert [test.whole[0].retained for test in inner.run.tests] == [2 * KIB, KIB]


GARBAGE = """
    import pytest, torch

    pytestmark = pytest.mark.memory_budget(retained=0)
    KEPT = []

    class Node:
        def __init__(self, size):
            self.me, self.memory = self, torch.empty(size, dtype=torch.uint8)

    def test_garbage():
        Node(2**20)

    def test_little_garbage():
        Node(2**10)

    def test_error_that_was_handled():
        try:
            raise ValueError(torch.empty(2**20))
        except ValueError as error:
            kept = error

    def test_keeps_beside_garbage():
        Node(2**20)
        KEPT.append(torch.empty(2**10, dtype=torch.uint8))

    @pytest.mark.memory_baseline(metrics=["retained"])
    def test_recorded():
        Node(2**20)
"""


@pytest.mark.parametrize("switches", [(), ("--cudamem",), ("--cudamem", "--cudamem-leaks=off", "--cudamem-cycles=off")])
def test_what_the_collector_frees_is_not_retained(run_inner, switches):
    """With any other checks, and for any size."""
    inner = run_inner(GARBAGE, *switches)
    assert {name: inner.test(name).whole[0].retained for name in inner.outcomes} == {
        "test_garbage": 0,
        "test_little_garbage": 0,
        "test_error_that_was_handled": 0,
        "test_keeps_beside_garbage": KIB,
        "test_recorded": 0,
    }
    assert inner.section("ERROR at teardown of test_keeps_beside_garbage")[0] == (
        "cudamem: retained 1.0 KiB is over its budget of 0 B by 1.0 KiB (test, cpu)"
    )
    assert inner.last == "5 passed, 1 error"
    assert inner.test("test_recorded").measured[0].values["retained"].low == 0
    kinds = {finding.kind.value for test in inner.run.tests for finding in test.findings}
    assert kinds == ({"budget", "cycle"} if switches == ("--cudamem",) else {"budget"})


EARLIER = """
    import gc, pytest, sys, torch, types
    KEPT = sys.modules["elsewhere"] = types.ModuleType("elsewhere")  # what is near needs no collection

    class Node:
        def __init__(self):
            self.me, self.memory = self, torch.empty(2**23, dtype=torch.uint8)

    @pytest.fixture(autouse=True, scope="module")
    def no_collector():
        gc.disable()
        yield
        gc.enable()

    def test_earlier():
        Node()

    @pytest.mark.memory_budget(retained=0)
    def test_keeps():
        KEPT.a = torch.empty(2**22, dtype=torch.uint8)

    def test_earlier_again():
        Node()

    @pytest.mark.memory_budget(at_least={"retained": "4MiB"})
    def test_keeps_at_least():
        KEPT.b = torch.empty(2**22, dtype=torch.uint8)

    def test_before_the_collector_is_back(): pass
"""


@pytest.mark.parametrize("switches", [(), ("--cudamem", "--cudamem-leaks=off", "--cudamem-cycles=off"), ("--cudamem",)])
def test_garbage_of_earlier_tests_hides_no_retained_memory(run_inner, switches):
    inner = run_inner(EARLIER, *switches)
    assert [inner.test(name).whole[0].retained for name in ("test_keeps", "test_keeps_at_least")] == [2**22, 2**22]
    (over,) = [one for one in inner.test("test_keeps").findings if one.kind is Kind.BUDGET]
    start = inner.test("test_keeps").whole[0].start
    assert text(over).splitlines()[:2] == [
        "cudamem: retained 4.0 MiB is over its budget of 0 B by 4.0 MiB (test, cpu)",
        f"start {format_size(start)}, end {format_size(start + 2**22)}",
    ]
    changed = "garbage of earlier tests changed cpu by -8.0 MiB, not counted here"
    assert (f"note: {changed}" in details(over)) == (switches != ("--cudamem",))  # there each test's own is collected
    assert [one.verdict for one in inner.test("test_keeps_at_least").findings if one.kind is Kind.BUDGET] == []


ANYTIME = """
    import gc, pytest, torch

    class Node:
        def __init__(self):
            self.me, self.memory = self, torch.empty(2**20, dtype=torch.uint8)

    @pytest.fixture
    def collected_after(request):
        before = gc.get_threshold()
        gc.disable()
        yield
        gc.set_threshold(gc.get_count()[0] + request.param, *before[1:])
        gc.enable()

    @pytest.fixture(autouse=True, scope="module")
    def thresholds():
        before = gc.get_threshold()
        yield
        gc.set_threshold(*before)

    @pytest.mark.memory_budget(retained=0)
    @pytest.mark.parametrize("collected_after", range(10, 90, 4), indirect=True)
    def test_garbage(collected_after):
        Node()
"""


def test_whenever_the_collector_runs_nothing_is_retained(run_inner):
    """Also between the last read of a test and its verdict."""
    inner = run_inner(ANYTIME, "--cudamem", "--cudamem-cycles=off", "--cudamem-json=report.json")
    assert {name: retained for name in inner.outcomes if (retained := inner.test(name).whole[0].retained)} == {}
    assert inner.last == "20 passed"
