"""Tests of hypothesis: each example is a region, a breach is measured twice, the smallest failing input is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cudamem_testing.model.facts import OverLimit, Retained
from cudamem_testing.model.findings import Severity, Verdict
from cudamem_testing.wording.findings import details, title
from suites.plugin.inner import Inner
from suites.plugin.inner import run_inner as run_in_process

KIB = 1024
HEAD = """
    import pytest, torch
    from hypothesis import HealthCheck, Phase, assume, example, given, settings, strategies as st, target

    PHASES = (Phase.explicit, Phase.generate, Phase.target, Phase.shrink)  # no Phase.explain: it traces each line
    QUICK = settings(database=None, deadline=None, max_examples=10, derandomize=True, phases=PHASES)
"""
PASSING = (
    HEAD
    + """
    SEEN, FIRST = set(), []

    @settings(QUICK, max_examples=2)
    @given(n=st.integers(1, 64))
    def test_every_fixture(
        cuda_memory, memory_profile, memory_snapshot, operator_memory, reference_cycles, graph_capture, n
    ):
        with cuda_memory.window("part") as part:
            torch.empty(n * 256)
        assert part.peak_growth == n * 1024
        assert cuda_memory.entered == []
        with reference_cycles() as cycles:
            pass
        cycles.assert_none()
        profile = memory_profile()
        with profile:
            pass

    @QUICK
    @given(n=st.sampled_from([1, 2, 3]))
    def test_a_first_call_may_cost_more(cuda_memory, n):
        with cuda_memory.budget(peak="1KiB"):
            if n not in SEEN:
                SEEN.add(n)
                torch.empty(1024)

    @pytest.mark.memory_budget(peak="1KiB")
    @QUICK
    @given(data=st.data())
    def test_drawn_values_are_drawn_once(data):
        n = data.draw(st.integers(1, 9))
        target(n)
        if not FIRST:
            FIRST.append(n)
            torch.empty(1024)

    @pytest.mark.memory_budget(peak="8KiB", allocations=2)
    @QUICK
    @given(n=st.integers(1, 1024))
    def test_limits_hold_for_each_example(n):
        torch.empty(n)
        torch.empty(n)

    @QUICK
    @given(n=st.integers(1, 64))
    def test_rejected(n):
        x = torch.empty(2**18)
        assume(n % 2)

    @QUICK
    @given(n=st.integers(1, 64))
    def test_handles_its_breach(cuda_memory, n):
        with pytest.raises(AssertionError), cuda_memory.budget(peak=0):
            torch.empty(n)

    @QUICK
    @given(n=st.integers(1, 4))
    def test_strategies_keep_tensors(n):
        st.lists(st.just(torch.ones(2**18)))

    class TestMethods:
        @QUICK
        @given(n=st.integers(1, 4))
        def test_method(self, cuda_memory, n):
            with cuda_memory.window("inside"):
                torch.empty(n)

    from hypothesis import stateful

    class Cold(stateful.RuleBasedStateMachine):
        @stateful.rule(n=st.integers(1, 3))
        def add(self, n):
            if not FIRST[1:]:
                FIRST.append(n)
                torch.empty(4096)

    TestMachine = Cold.TestCase
    TestMachine.settings = settings(QUICK, stateful_step_count=4, max_examples=3)
    TestMachine.pytestmark = [pytest.mark.memory_budget(peak="8KiB")]

    import unittest

    class TestUnit(unittest.TestCase):
        @QUICK
        @given(n=st.integers(1, 4))
        def test_unit(self, n):
            torch.empty(256)
"""
)


def run(pytester: pytest.Pytester, files: str, *args: str) -> Inner:
    return run_in_process(pytester, files, *args, plugins=["_hypothesis_pytestplugin"])


def names(inner: Inner, test: str) -> list[str]:
    return [window.name for window in inner.test(test).windows]


def test_examples_that_pass(pytester: pytest.Pytester) -> None:
    passing = run(pytester, PASSING, "--cudamem", "--cudamem-cycles=fail")
    assert passing.last == "10 passed"
    found = names(passing, "test_every_fixture")
    assert found[:5] == ["setup", "example 1", "example 1: part", "example 2", "example 2: part"]
    assert found[-2:] == ["call", "teardown"]
    first = passing.window("test_every_fixture", "example 1: part")
    assert (first.peak_growth, first.allocations) == (KIB, 1)
    assert passing.window("test_every_fixture").complete
    assert passing.test("test_a_first_call_may_cost_more").notes == (
        "3 examples exceeded a limit in the first run, not in a warm one",
    )
    assert passing.test("test_drawn_values_are_drawn_once").notes == (
        "1 example exceeded a limit in the first run, not in a warm one",
    )
    limited = passing.test("test_limits_hold_for_each_example")
    assert limited.budget_used == 1.0
    assert (limited.window("call").allocations or 0) > 2
    rejected = passing.test("test_rejected")
    assert rejected.findings == ()
    assert rejected.window("call").peak_growth == 2**20  # the frames of rejected examples are cleared at once
    handled = passing.test("test_handles_its_breach").findings
    assert [one.severity.value for one in handled] == ["note"]
    kept = passing.test("test_strategies_keep_tensors").findings
    assert [(one.verdict, one.severity) for one in kept] == [(Verdict.HARNESS, Severity.NOTE)]
    assert names(passing, "test_method")[1:3] == ["example 1", "example 1: inside"]
    assert names(passing, "test_unit")[1] == "example 1"
    assert names(passing, "runTest")[1] == "example 1"
    assert passing.test("runTest").notes == ("1 example exceeded a limit in the first run, not in a warm one",)


FAILING = (
    HEAD
    + """
    KEPT, CACHE = [], {}

    @settings(QUICK, phases=tuple(Phase))
    @given(n=st.integers(1, 2000))
    def test_budget(cuda_memory, n):
        with cuda_memory.budget(peak="1KiB"):
            torch.empty(n)

    @pytest.mark.memory_budget(peak="4KiB")
    @QUICK
    @given(n=st.integers(1, 2000), other=st.tuples(st.integers(), st.text()))
    def test_marker(n, other):
        torch.empty(n)

    @pytest.mark.memory_budget(peak="32KiB")
    @QUICK
    @given(n=st.integers(1000, 1024))
    def test_all_together(n):
        KEPT.append(torch.ones(n))

    @QUICK
    @given(n=st.integers(1, 2000))
    def test_leaks(n):
        if n > 1000:
            CACHE[n] = torch.empty(2**18)

    @pytest.mark.memory_budget(retained=0)
    @pytest.mark.cudamem(leaks="off", reason="the limit alone")
    @QUICK
    @given(n=st.integers(1, 64))
    @example(n=500)
    def test_retains(n):
        if n > 100:
            CACHE["kept"] = torch.empty(n)

    from hypothesis import stateful

    class Keeps(stateful.RuleBasedStateMachine):
        @stateful.rule()
        def look(self): pass

        @stateful.rule(n=st.integers(1, 3000))
        def add(self, n):
            torch.empty(n)
            CACHE["machine"] = torch.empty(1)

    TestMachine = Keeps.TestCase
    TestMachine.settings = settings(QUICK, stateful_step_count=4, max_examples=20)
    TestMachine.pytestmark = [pytest.mark.memory_budget(peak="8KiB")]

    @pytest.fixture
    def own():
        return 1

    @QUICK
    @given(n=st.integers())
    def test_other_fixtures_are_checked(cuda_memory, own, n): pass
"""
)


def test_examples_that_fail(pytester: pytest.Pytester) -> None:
    failing = run(pytester, FAILING, "--cudamem", "--cudamem-ignore-below=0")
    the_smallest_one_alone_is_shown(failing)
    limits_on_all_examples_name_one(failing)
    a_leaking_example_is_named(failing)
    a_machine_has_examples(failing)
    fixtures_of_others_are_checked_as_always(failing)


def the_smallest_one_alone_is_shown(failing: Inner) -> None:
    (found,) = failing.test("test_budget").findings
    assert title(found).startswith("cudamem: peak 1.0 KiB above start is over its budget of 1.0 KiB by 4 B (example ")
    assert title(found).endswith(": budget, cpu)")
    section = failing.section("test_budget")
    assert sum("over its budget" in one for one in section) == 1
    assert "E           n=257," in section
    assert not any("cudamem_testing/" in one for one in section)
    assert len(section) < 40
    (note,) = failing.test("test_budget").notes
    assert note.endswith(" examples broke a limit; the smallest one found is shown")

    (found,) = failing.test("test_marker").findings
    assert isinstance(found.fact, OverLimit)
    assert found.fact.breach.measured == 4 * KIB + 4
    assert "E       n=1025," in failing.section("test_marker")
    assert sum("over its budget" in one for one in failing.section("test_marker")) == 1


def limits_on_all_examples_name_one(failing: Inner) -> None:
    found = failing.test("test_all_together").findings[0]
    lines = details(found)
    assert lines[1].startswith("highest in example 10: n=10")
    assert lines[1].endswith(" (10 examples judged together)")
    (retained,) = failing.test("test_retains").findings
    assert details(retained)[1] == "retained most in example 1: n=500: 2.0 KiB"


def a_leaking_example_is_named(failing: Inner) -> None:
    (found,) = failing.test("test_leaks").findings
    assert isinstance(found.fact, Retained)
    number, _, text = found.fact.example.partition(": n=")
    assert int(number) >= 1
    assert int(text) > 1000
    assert found.fact.examples == found.fact.count
    line = f"   in example {found.fact.example} (the first of {found.fact.examples} examples that left memory here)"
    assert line in failing.lines


def a_machine_has_examples(failing: Inner) -> None:
    over, leaked = failing.test("runTest").findings
    assert isinstance(over.fact, OverLimit)
    assert over.fact.breach.measured == 8 * KIB + 4
    assert "E   state.add(n=2049)" in failing.section("TestMachine.runTest")
    assert isinstance(leaked.fact, Retained)
    _, _, steps = leaked.fact.example.partition(": ")
    assert {*steps.split(", ")} <= {"look", "add"}


def fixtures_of_others_are_checked_as_always(failing: Inner) -> None:
    section = failing.section("test_other_fixtures_are_checked")
    assert any("uses a function-scoped fixture 'own'" in one for one in section)
    assert not any("'cuda_memory'" in one for one in section)


PAGE = Path(__file__).parents[2] / "docs" / "hypothesis.md"


def block(kind: str, name: str) -> str:
    """The block of the page below a line ``<!-- kind: name -->``."""
    text = PAGE.read_text(encoding="utf-8")
    return text.partition(f"<!-- {kind}: {name} -->\n```")[2].partition("\n")[2].partition("```")[0]


def test_the_example_of_the_page_finds_the_length(pytester: pytest.Pytester) -> None:
    """What the page shows is what a run prints, but for the number of the example."""
    code = block("example", "quadratic").replace("deadline=None", "deadline=None, derandomize=True, database=None")
    inner = run(pytester, code, "--cudamem-device=cpu")
    shown = [line.removeprefix("E").strip() for line in inner.section("test_memory_is_linear")]
    for line in block("output", "quadratic").splitlines():
        expected = re.escape(line.strip()).replace("example\\ 97", r"example \d+")
        assert any(re.fullmatch(rf"(.*OverBudget: )?{expected}", one) for one in shown), (line, shown)
