"""Cycles under the plugin: severities, first sight and second, whose they are, and the fixture."""

from __future__ import annotations

import gc

import pytest

from cudamem_testing.cycles import watch as watching
from cudamem_testing.model.findings import Kind, Severity, Verdict
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.run import cycles
from cudamem_testing.wording.findings import details, title
from cudamem_testing.wording.meanings import MEANINGS
from suites.plugin.inner import KIB

MEANING = MEANINGS[Verdict.CYCLE]
HEAD = """
    import gc, weakref
    import pytest, torch

    class Node:
        pass

    def ring():
        one = Node()
        one.me, one.big = one, torch.zeros(65536)

    def plain(name):
        linear = torch.nn.Linear(65536, 1, bias=False)
        setattr(linear, name, linear)

    def library():
        graph = torch.fx.Graph()
        graph.placeholder("x").meta["big"] = torch.zeros(65536)
"""


def found(inner, name):
    return [(finding.kind, finding.severity, finding.bytes) for finding in inner.test(name).findings]


def test_severities_and_sight(run_inner):
    callbacks = [*gc.callbacks]  # hypothesis has one of its own
    inner = run_inner(
        HEAD
        + """
    def test_own():
        ring()

    def test_plain_first():
        plain("a")

    def test_plain_second():
        plain("a")

    def test_library_first():
        library()

    def test_library_second():
        library()

    @pytest.mark.cudamem(cycles="warn", reason="known")
    def test_warned():
        ring()

    @pytest.mark.cudamem(cycles="off", reason="known")
    def test_off():
        ring()

    @pytest.mark.cudamem(cycles="strict", reason="must not")
    def test_strict():
        library()

    @pytest.mark.xfail
    def test_expected():
        ring()

    def test_failed_already():
        ring()
        assert 0

    def test_clean():
        one = Node()
        one.big = torch.zeros(65536)
        one.me = weakref.ref(one)
    """,
        "--cudamem",
        "--cudamem-cycles=fail",
    )
    size = 256 * KIB
    fail, warn = [(Kind.CYCLE, Severity.FAIL, size)], [(Kind.CYCLE, Severity.WARN, size)]
    assert found(inner, "test_own") == fail
    assert found(inner, "test_plain_first") == fail
    assert found(inner, "test_plain_second") == fail
    assert found(inner, "test_library_first") == warn
    assert found(inner, "test_library_second") == warn
    assert found(inner, "test_warned") == warn
    assert found(inner, "test_off") == []
    assert found(inner, "test_strict") == fail
    assert found(inner, "test_expected") == fail
    assert found(inner, "test_failed_already") == warn
    assert found(inner, "test_clean") == []
    assert inner.outcomes["test_expected"] == "xfailed"
    assert {name for name, outcome in inner.outcomes.items() if outcome == "error"} == {
        "test_own",
        "test_plain_first",
        "test_plain_second",
        "test_strict",
    }
    assert "\n".join(inner.section("ERROR at teardown of test_own")).splitlines() == [
        "cudamem: 256.0 KiB kept by a reference cycle (1 tensor, cpu)",
        "   Node.__dict__['me'] -> Node",
        "   keeps 256.0 KiB in 1 tensor: big float32[65536]",
        "   allocated  test_it.py:9 in ring",
        "   closed by  test_it.py:9: one.me, one.big = one, torch.zeros(65536)",
        f"   cycle: {MEANING.text}; {MEANING.hint}",
    ]
    assert gc.callbacks == callbacks


def test_a_cpu_is_warned_by_default(run_inner):
    inner = run_inner(HEAD + "\n    def test_own():\n        ring()\n", "--cudamem")
    assert found(inner, "test_own") == [(Kind.CYCLE, Severity.WARN, 256 * KIB)]
    assert inner.status == 0


def test_in_the_middle_of_a_test(run_inner):
    inner = run_inner(
        HEAD
        + """
    @pytest.fixture(scope="module")
    def wide():
        return [torch.zeros(65536)]

    def test_loop(wide):
        for _ in range(3):
            ring()
            gc.collect()
        one = Node()
        one.me, one.shared = one, wide[0]
        del one
        gc.collect()
        assert (gc.get_debug(), gc.garbage) == (0, [])

    def test_small():
        one = Node()
        one.me, one.big = one, torch.zeros(4)
        del one
        gc.collect()

    def test_wide_one_in_a_cycle(wide):
        one = Node()
        one.me, one.big = one, wide.pop()
        del one
        gc.collect()
    """,
        "--cudamem",
        "--cudamem-cycles=fail",
    )
    (finding,) = inner.test("test_loop").findings
    assert title(finding) == (
        "cudamem: 768.0 KiB kept by a reference cycle (3 tensors, cpu); up to 256.0 KiB at once, "
        "which may inflate the peak"
    )
    assert (finding.verdict, finding.holder) == (Verdict.CYCLE, "Node.__dict__['me'] -> Node")
    assert finding.cause == "cycle | cycle | test_it.Node .me"
    assert inner.test("test_small").findings == ()
    assert inner.test("test_wide_one_in_a_cycle").findings == (), "what a fixture made is not the test's"


def test_leaks_off_and_cycles_on(run_inner):
    body = (
        HEAD
        + """
    KEPT = []

    def test_both():
        ring()
        KEPT.append(torch.zeros(65536))
    """
    )
    inner = run_inner(body, "--cudamem", "--cudamem-leaks=off", "--cudamem-cycles=fail")
    assert [kind for kind, _, _ in found(inner, "test_both")] == [Kind.CYCLE]
    inner = run_inner(body, "--cudamem", "--cudamem-cycles=off")
    assert [kind for kind, _, _ in found(inner, "test_both")] == [Kind.LEAK]
    inner = run_inner(body, "--cudamem", "--cudamem-leaks=off", "--cudamem-cycles=off")
    assert found(inner, "test_both") == []


def test_what_belongs_to_the_harness_or_to_finalizers(run_inner):
    inner = run_inner(
        HEAD
        + """
    def test_raises():
        big = torch.zeros(65536)
        with pytest.raises(ValueError) as info:
            raise ValueError(big.sum())

    def test_generator():
        one = Node()
        one.big = torch.zeros(65536)
        def steps(held):
            yield held
        one.steps = steps(one)
        next(one.steps)

    def test_generator_that_never_started():
        one = Node()
        one.big = torch.zeros(65536)
        def steps(held):
            yield held
        one.steps = steps(one)
    """,
        "--cudamem",
        "--cudamem-cycles=fail",
    )
    (finding,) = inner.test("test_raises").findings
    assert (finding.severity, details(finding)[-2]) == (
        Severity.NOTE,
        "   the test harness is part of it (an ExceptionInfo in a local variable): not the test's fault",
    )
    for name in ("test_generator", "test_generator_that_never_started"):
        (finding,) = inner.test(name).findings
        assert (finding.severity, finding.bytes) == (Severity.FAIL, 256 * KIB)
        assert finding.holder == "Node.__dict__['steps'] -> generator steps -> local 'held' -> Node"


@pytest.mark.parametrize("arguments", [(), ("--cudamem", "--cudamem-cycles=fail")])
def test_the_fixture(run_inner, arguments):
    inner = run_inner(
        HEAD
        + """
    def test_region(reference_cycles):
        with reference_cycles() as cycles:
            ring()
        cycles.assert_cycle('''
            Node.__dict__['me'] -> Node
            keeps 256.0 KiB in 1 tensor: big float32[65536]
            ''')
        assert cycles.found[0].tensors[0].allocated == "test_it.py:9 in ring"
        assert "cytoscape" in cycles.html() and cycles.dot().startswith("digraph {")

    def test_none(reference_cycles):
        with reference_cycles() as cycles:
            torch.zeros(65536)
        cycles.assert_none()

    def test_fails(reference_cycles):
        with reference_cycles() as cycles:
            ring()
        cycles.assert_none()
    """,
        *arguments,
    )
    assert inner.outcomes == {"test_region": "passed", "test_none": "passed", "test_fails": "failed"}
    assert "E       AssertionError: reference cycles keep memory:" in inner.lines


def test_a_bound_on_the_time_that_looking_takes(run_inner, monkeypatch):
    monkeypatch.setattr(cycles, "MOST_SECONDS", 0.0)
    inner = run_inner(
        HEAD
        + """
    def test_loop():
        ring()
        gc.collect()
        ring()
        gc.collect()
        ring()
        gc.collect()
    """,
        "--cudamem",
    )
    note, cycle = inner.test("test_loop").findings
    assert (note.severity, cycle.bytes) == (Severity.NOTE, 256 * KIB)
    assert title(note) == (
        "cudamem: garbage with tensors was not explained: the test's collections took more than 0 s to examine; "
        "2 later ones with tensors not examined"
    )
    assert note.cause == "cycle | not explained"


@pytest.mark.usefixtures("collector_off")  # what a collection of its own frees is not retained at the end of the test
def test_an_error_in_an_explanation_is_a_note(run_inner, monkeypatch):
    monkeypatch.setattr("cudamem_testing.cycles.explain.explain", None)
    inner = run_inner(HEAD + "\n    def test_own():\n        ring()\n", "--cudamem", "--cudamem-cycles=fail")
    first, second = inner.test("test_own").findings
    assert title(first).endswith("not explained: TypeError: 'NoneType' object is not callable")
    assert (first.severity, second.severity, second.bytes) == (Severity.NOTE, Severity.WARN, 256 * KIB)
    assert details(second)[-1] == "   its objects could not be read"
    assert gc.garbage == []


def test_without_a_compiler_the_run_says_cycles_are_unchecked(run_inner, monkeypatch):
    def library():
        raise RecorderUnavailable("no C++ compiler found")

    monkeypatch.setattr(watching, "library", library)
    inner = run_inner(
        HEAD + "\n    def test_a():\n        ring()\n\n    def test_b():\n        ring()\n",
        "--cudamem",
        "--cudamem-cycles=fail",
        "--cudamem-leaks=off",
    )
    assert inner.status == 0
    note = "NOT CHECKED: reference cycles: collections cannot be watched: no C++ compiler found"
    assert [line for line in inner.run.notes if "NOT CHECKED" in line] == [note]


def test_garbage_that_is_small_together_is_not_read(run_inner):
    """Four times 16 KiB reach the 64 KiB from which cycles on the CPU are judged; what came before is said."""
    inner = run_inner(
        HEAD
        + """
    def small():
        one = Node()
        one.me, one.big = one, torch.zeros(4096)

    @pytest.mark.parametrize("times", [3, 4])
    def test_small(times):
        for _ in range(times):
            small()
            gc.collect()
    """,
        "--cudamem",
    )
    assert found(inner, "test_small[3]") == []
    (finding,) = inner.test("test_small[4]").findings
    assert finding.bytes == 16 * KIB
    assert details(finding)[-2] == (
        "   earlier garbage was smaller than the ignored size and was not examined: it freed 48.0 KiB"
    )


def test_the_shown_line_ignores_a_librarys_cycle(run_inner):
    file = HEAD + "\n    def test_it():\n        library()\n"
    inner = run_inner(file, "--cudamem")
    (finding,) = inner.test("test_it").findings
    assert finding.severity is Severity.WARN
    rule = "holder: Node._prev -> Node._prev -> Node  # made by torch"
    ready = f"to ignore it, add to cudamem_ignore: {rule}"
    assert f"   {ready}" in details(finding)
    assert inner.summary[1:4] == [
        "warning: test_it.py::test_it: 256.0 KiB kept by a reference cycle (1 tensor,",
        "  cpu): Node._prev -> Node._prev -> Node",
        f"  {ready}",
    ]
    inner = run_inner(file, "--cudamem", "-o", f"cudamem_ignore={rule}")
    assert inner.test("test_it").findings == ()
    assert any("ignored 1 finding by rule 'holder: Node._prev" in line for line in inner.lines)


def test_subclasses_that_store_a_submodule_are_one_cause(run_inner):
    inner = run_inner(
        HEAD
        + """
    class Strategy(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.__dict__["model"] = model
            self.layer = torch.nn.Linear(256, 256)

    class Base(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.strategy = Strategy(self)

    class One(Base):
        pass

    class Two(Base):
        pass

    class Own(Base):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.other = Strategy(self)

    @pytest.mark.parametrize("cls", [Base, One, Two, Own])
    def test_it(cls):
        cls()
    """,
        "--cudamem",
    )
    findings = [inner.test(f"test_it[{name}]").findings[0] for name in ("Base", "One", "Two", "Own")]
    assert [finding.cause.partition(" | test_it.")[2] for finding in findings] == [
        *["Base .strategy | test_it.Strategy .model"] * 3,
        "Own .other | test_it.Strategy .model",
    ]


def test_subclasses_of_a_class_closing_a_cycle_are_one_cause(run_inner):
    inner = run_inner(
        HEAD
        + """
    class Base(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(256, 256)
            self._register_load_state_dict_pre_hook(self.load)

        def load(self, *_):
            pass

    class One(Base):
        pass

    class Two(Base):
        def __init__(self):
            super().__init__()
            self.more = torch.nn.Linear(8, 8)

    class Three(Base):
        def __init__(self):
            super().__init__()
            self.fn = self.own

        def own(self):
            pass

    @pytest.mark.parametrize("cls", [Base, One, Two])
    def test_alike(cls):
        cls()

    def test_other():
        Three()
    """,
        "--cudamem",
    )
    alike = [finding for test in inner.run.tests if "alike" in test.nodeid for finding in test.findings]
    assert len({finding.cause for finding in alike}) == 1
    assert "test_it.Base" in alike[0].cause
    assert {line for finding in alike for line in details(finding) if "closed by" in line} == {
        "   closed by  test_it.py:23: self._register_load_state_dict_pre_hook(self.load)"
    }
    (other,) = inner.test("test_other").findings
    assert other.cause not in {finding.cause for finding in alike}


def test_a_timeout_ends_a_test_that_makes_cycles_until_then(run_inner, no_callbacks):
    """As pytest-timeout does it: the handler of an alarm calls ``pytest.fail``."""
    inner = run_inner(
        HEAD
        + """
    import signal, time

    def late(number, frame):
        pytest.fail("too late")

    @pytest.mark.parametrize("n", range(12))
    def test_loops(n):
        before = signal.signal(signal.SIGALRM, late)
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.02 + n * 0.0007)
        try:
            while time.monotonic() < start + 1:
                ring()
                gc.collect(0)
        finally:
            print("ended early:", time.monotonic() < start + 0.5)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    """,
        "--cudamem",
    )
    assert {*inner.outcomes.values()} == {"failed"}
    assert len(inner.outcomes) == 12
    assert inner.lines.count("E       Failed: too late") == 12
    assert inner.lines.count("ended early: True") == 12
    assert all(found(inner, f"test_loops[{n}]") for n in range(12))


def test_wrong_severities(run_inner):
    inner = run_inner("def test_a(): pass", "--cudamem-cycles=loud")
    assert inner.status == 4
    assert "cudamem: --cudamem-cycles: 'loud' is not known: write fail, warn, off or strict" in inner.err


def test_cycles_of_plain_lists_differ_by_allocating_function(run_inner):
    """They look alike: that one is known does not excuse another."""
    file = """
        import torch

        def looped():
            one = [torch.empty(2**18)]
            one.append(one)

        def test_a(): looped()
        def test_b(): looped()

        def test_c():
            other = {"t": torch.empty(2**18)}
            other["me"] = [other]
    """
    inner = run_inner(file, "--cudamem")
    assert [finding.cause for test in inner.run.tests for finding in test.findings] == [
        "cycle | cycle | test_it.py::looped | builtins.list *",
        "cycle | cycle | test_it.py::looped | builtins.list *",
        "cycle | cycle | test_it.py::test_c | builtins.dict ['me'] | builtins.list *",
    ]


OF_THE_HARNESS = {
    "lib.py": '''
        import torch

        def raises():
            """
            >>> import torch
            >>> x = torch.empty(2**18)
            >>> x.missing
            Traceback (most recent call last):
            AttributeError: 'Tensor' object has no attribute 'missing'
            """
    ''',
    "flexmock/__init__.py": """
        class Mock:
            def __init__(self):
                self.calls, self.again = [], self

            def record(self, value):
                self.calls.append(value)
    """,
    "mock_data.py": "from flexmock import Mock\nclass Own(Mock): pass",
    "test_it.py": """
        import flexmock, mock_data, torch
        from hypothesis import settings, strategies
        from hypothesis.stateful import RuleBasedStateMachine, rule

        def test_mock():
            flexmock.Mock().record(torch.empty(2**18))

        def test_own():
            one = mock_data.Own()
            one.own = one
            del one.again
            one.record(torch.empty(2**18))

        class Machine(RuleBasedStateMachine):
            def __init__(self):
                super().__init__()
                self.x = torch.empty(2**18)

            @rule(n=strategies.integers())
            def step(self, n):
                self.y = self.x * 2

        TestMachine = Machine.TestCase
        TestMachine.settings = settings(max_examples=5, deadline=None, database=None)
    """,
}


def test_cycles_of_other_mocks_doctest_and_hypothesis_are_notes(run_inner):
    """Control: a class of the project that is made like a mock."""
    inner = run_inner(OF_THE_HARNESS, "--cudamem", "--cudamem-cycles=fail", "--doctest-modules")
    assert inner.last == "4 passed, 1 error"
    found = {
        test.nodeid.rpartition("::")[2]: {one.severity.value for one in test.findings if one.kind.value == "cycle"}
        for test in inner.run.tests
    }
    assert found == {"lib.raises": {"note"}, "test_mock": {"note"}, "test_own": {"fail"}, "runTest": {"note"}}
