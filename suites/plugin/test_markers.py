"""The marker ``memory_budget``: where it can stand, what it refuses, and which of several wins."""

from __future__ import annotations

import pytest

from cudamem_testing.wording.findings import title

USAGE_ERROR = 4
KNOWN = "absolute, allocations, at_least, device, fragmentation, peak, reserved, retained, retries, warmup"
SIZES = "write bytes as an int, or a number with a unit: 512MiB, 1.5GiB (binary), 7GB (decimal)"

BAD = """
    import pytest
    budget = pytest.mark.memory_budget

    @budget("1MiB")
    def test_positional(): pass

    @budget(speed=3, colour=1)
    def test_unknown(): pass

    @budget(peak="lots", retained=-1, device="tpu", absolute="yes", warmup=-1)
    def test_many(): pass

    @budget()
    def test_empty(): pass

    @budget(peak={})
    def test_no_device(): pass

    @budget(peak={"cuda": 1}, device="cpu")
    def test_two_devices(): pass

    @budget(peak=True)
    def test_bool(): pass

    @budget(allocations="3")
    def test_count(): pass

    @budget(at_least={"speed": 3})
    def test_lower_metric(): pass

    @budget(peak="1MiB", at_least="2MiB")
    def test_contradiction(): pass

    @budget(at_least={"retained": "2MiB"})
    class TestClass:
        @budget(retained="1MiB")
        def test_contradiction_of_two(self): pass

    @pytest.mark.parametrize("size", [pytest.param(1, marks=budget(peak="x")), 2])
    def test_parameter(size): pass

    @budget(peak="1MiB")
    def test_good(): pass
"""


def test_one_message_names_every_bad_test_and_argument(run_inner):
    inner = run_inner(BAD, "--strict-markers")
    assert (inner.status, inner.record) == (USAGE_ERROR, None)
    problems = [
        ("test_positional", "takes keyword arguments only, such as peak='1MiB'"),
        ("test_unknown", f"has no argument colour, speed: it takes {KNOWN}"),
        ("test_many", "device 'tpu' is not known: write cpu, cuda, cuda:N or host"),
        ("test_many", "absolute='yes' is not True or False"),
        ("test_many", "warmup=-1 is not a number of runs"),
        ("test_many", f"peak: size 'lots' is not understood: {SIZES}"),
        ("test_many", f"retained: size -1 is negative: {SIZES}"),
        ("test_empty", "sets no limit: write for example peak='512MiB'"),
        ("test_no_device", "peak={} names no device"),
        ("test_two_devices", "peak: names cuda beside device=cpu"),
        ("test_bool", f"peak: size True is a bool: {SIZES}"),
        ("test_count", "allocations: '3' is not a count: write an int of 0 or more"),
        (
            "test_lower_metric",
            (
                "at_least has the unknown metric 'speed': write peak, reserved, retained, allocations, retries, "
                "fragmentation"
            ),
        ),
        ("test_contradiction", "at_least peak of 2.0 MiB is above the limit of 1.0 MiB"),
        (
            "TestClass::test_contradiction_of_two",
            "at_least retained of 2.0 MiB is above the limit of 1.0 MiB",
        ),
        ("test_parameter[1]", f"peak: size 'x' is not understood: {SIZES}"),
    ]
    expected = [f"cudamem: test_it.py::{test}: memory_budget {problem}" for test, problem in problems]
    assert inner.err.strip().splitlines() == [f"ERROR: {expected[0]}", *expected[1:]]


def test_bad_markers_stop_the_run_when_nothing_is_enforced_too(run_inner):
    inner = run_inner(BAD, "--no-cudamem", "-k", "test_empty")
    assert inner.status == USAGE_ERROR


def test_the_budget_of_the_run_must_not_contradict_a_test(run_inner):
    file = """
        import pytest
        @pytest.mark.memory_budget(at_least="2MiB")
        def test_needs_more(): pass
    """
    inner = run_inner(file, "--cudamem", "--cudamem-budget=peak=1MiB")
    assert inner.status == USAGE_ERROR
    assert inner.err.strip() == (
        "ERROR: cudamem: test_it.py::test_needs_more: "
        "memory_budget at_least peak of 2.0 MiB is above the limit of 1.0 MiB"
    )


def test_a_misspelled_marker_is_refused_by_strict_markers(run_inner):
    file = """
        import pytest
        @pytest.mark.memory_budgets(peak=1)
        def test_it(): pass
    """
    inner = run_inner(file, "--strict-markers")
    assert inner.status == 2
    assert "'memory_budgets' not found in `markers` configuration option" in inner.out


MISSPELT = """
    import pytest, torch

    @pytest.mark.memory_budgt(peak="1KiB")
    class TestIt:
        @pytest.mark.parametrize("x", [1, 2])
        def test_a(self, x): torch.empty(9999)

    @pytest.mark.cudamen(leaks="off", reason="x")
    def test_b(): pass

    @pytest.mark.Memory_Budget(peak="1KiB")
    @pytest.mark.emory_baseline
    def test_c(): pass

    @pytest.mark.memory
    @pytest.mark.cuda
    @pytest.mark.memory_budgets
    def test_own(): pass
"""
INI = "[pytest]\nmarkers =\n  memory_budgets: of another plugin\n"


def test_a_marker_that_is_nearly_one_of_ours(run_inner):
    """Under --cudamem an error; else a line, as nothing is asked for. One that is registered is somebody's own."""
    found = [
        ("test_c", "Memory_Budget", "memory_budget"),
        ("test_b", "cudamen", "cudamem"),
        ("test_c", "emory_baseline", "memory_baseline"),
        ("TestIt", "memory_budgt", "memory_budget"),
    ]
    lines = [
        f"test_it.py::{place}: unknown marker {name}: did you mean {near}? (register {name} if it is your own)"
        for place, name, near in found
    ]
    files = {"test_it.py": MISSPELT, "pytest.ini": INI}
    inner = run_inner(files, "--cudamem", "-W", "ignore")
    assert inner.status == USAGE_ERROR
    assert inner.err.strip().removeprefix("ERROR: ").splitlines() == [f"cudamem: {line}" for line in lines]
    inner = run_inner(files, "-W", "ignore", "-q")
    assert inner.status == 0
    assert [line for line in inner.lines if "cudamem:" in line] == [f"cudamem: NOT CHECKED: {line}" for line in lines]
    assert run_inner(files, "-k", "own", "--cudamem", "-W", "ignore").status == 0


APPLIED = """
    import pytest, torch

    def test_applied(request):
        request.applymarker(pytest.mark.memory_budget(peak="1KiB"))
        torch.empty(9999)

    @pytest.fixture
    def marks(request):
        request.applymarker(pytest.mark.cudamem(leaks="off", reason="x"))

    @pytest.mark.memory_budget(peak="1MiB")
    def test_second(marks): pass

    def test_other(request):
        request.applymarker(pytest.mark.xfail(reason="x"))
"""


@pytest.mark.parametrize("args", [(), ("--cudamem", "-q")])
def test_a_marker_that_a_test_applies_is_refused(run_inner, args):
    inner = run_inner(APPLIED, *args)
    late = "was applied while the test ran, but markers are only read at collection"
    assert inner.status == 1
    assert [line for line in inner.lines if line.startswith("cudamem: test")] == [
        f"cudamem: test_it.py::test_applied: memory_budget {late}: use cuda_memory.budget(...)",
        f"cudamem: test_it.py::test_second: cudamem {late}",
    ]
    assert run_inner(APPLIED, *args, "-k", "other").status == 0
    assert run_inner(APPLIED, *args, "-k", "applied").status == 1


APPLIED_FARTHER = """
    import pytest, torch
    budget = pytest.mark.memory_budget(peak="1KiB")

    @pytest.fixture(scope="module")
    def of_module(request):
        request.applymarker(budget)

    def test_module(of_module): torch.empty(9999)

    class TestIt:
        @pytest.fixture(scope="class")
        def of_class(self, request):
            request.node.add_marker(pytest.mark.cudamem(leaks="off", reason="x"))

        def test_class(self, of_class): torch.empty(9999)

    def test_session(request):
        request.session.add_marker(pytest.mark.memory_baseline)

    def test_misspelt(request):
        request.applymarker(pytest.mark.memory_budgt(peak="1KiB"))

    @budget
    def test_early(): pass
"""


def test_a_marker_applied_late_is_refused_wherever_it_is_put(run_inner):
    inner = run_inner(APPLIED_FARTHER, "--cudamem", "-q", "-W", "ignore")
    late = "was applied while its tests ran, but markers are only read at collection"
    unknown = "unknown marker memory_budgt: did you mean memory_budget? (register memory_budgt if it is your own)"
    assert inner.status == 1
    assert [line for line in inner.lines if line.startswith(("cudamem: test", "cudamem: session"))] == [
        f"cudamem: test_it.py: memory_budget {late}: use cuda_memory.budget(...)",
        f"cudamem: session: memory_baseline {late}",
        f"cudamem: test_it.py::TestIt: cudamem {late}",
        f"cudamem: test_it.py::test_misspelt: {unknown}",
    ]
    assert run_inner(APPLIED_FARTHER, "--cudamem", "-k", "early").status == 0
    assert run_inner(APPLIED_FARTHER, "--cudamem", "-k", "misspelt", "-W", "ignore").status == 1
    inner = run_inner(APPLIED_FARTHER, "-k", "misspelt", "-W", "ignore", "-q")
    assert inner.status == 0
    assert f"cudamem: NOT CHECKED: test_it.py::test_misspelt: {unknown}" in inner.lines


def test_an_override_that_changes_nothing_is_refused(run_inner):
    inner = run_inner("import pytest\n@pytest.mark.cudamem(reason='x')\ndef test_it(): pass", "--cudamem")
    nothing = "cudamem changes nothing: give leaks=, cycles= or device="
    assert inner.err.strip() == f"ERROR: cudamem: test_it.py::test_it: {nothing}"


def test_a_wrong_marker_is_named_once_where_it_is_written(run_inner):
    file = """
        import pytest
        pytestmark = pytest.mark.cudamem(leaks="maybe", reason="x")

        @pytest.mark.memory_budget(peak="4")
        class TestIt:
            @pytest.mark.memory_baseline(tolerance="x")
            @pytest.mark.parametrize("x", [1, 2, pytest.param(3, marks=pytest.mark.memory_budget(speed=1))])
            def test_a(self, x): pass

            def test_b(self): pass
    """
    inner = run_inner(file, "--cudamem")
    assert inner.status == USAGE_ERROR
    assert inner.err.strip().splitlines() == [
        "ERROR: cudamem: test_it.py: cudamem leaks='maybe' is not known: write fail, warn, off",
        f"cudamem: test_it.py::TestIt: memory_budget peak: size '4' has no unit: {SIZES}",
        f"cudamem: test_it.py::TestIt::test_a[3]: memory_budget has no argument speed: it takes {KNOWN}",
        (
            "cudamem: test_it.py::TestIt::test_a: memory_baseline tolerance 'x' has the part 'x': write a share such "
            "as 5%, a size such as 10MiB, or both with | between them"
        ),
    ]


NEAREST = """
    import pytest, torch
    budget = pytest.mark.memory_budget
    pytestmark = budget(peak="1KiB", retained="1KiB", allocations=9)

    def takes(kib):
        torch.empty(kib * 256)

    def test_of_module():
        takes(2)

    @budget(peak="4KiB")
    def test_of_function():
        takes(2)

    @budget(peak="1KiB")
    @budget(peak="4KiB")
    def test_of_the_nearest_decorator():
        takes(2)

    @budget(peak=None, retained="2KiB")
    def test_none_is_not_written_down():
        takes(2)

    @budget(peak={"cpu": None})
    def test_lifted():
        takes(2)

    @budget(peak={"cuda": "8KiB"})
    def test_other_device():
        takes(2)

    @budget(peak="1KiB")
    @pytest.mark.parametrize("kib", [2, pytest.param(3, marks=budget(peak="4KiB")), 1])
    def test_of_parameter(kib):
        takes(kib)

    @budget(peak="1KiB")
    class TestBase:
        def test_of_class(self):
            takes(2)

        @budget(peak="4KiB")
        def test_of_method(self):
            takes(2)

    @budget(peak="4KiB")
    class TestDerived(TestBase):
        pass

    class TestInherits(TestBase):
        pass

    @budget(at_least={"allocations": 2})
    def test_other_metrics_stay():
        takes(1)
"""


def test_the_nearest_budget_wins_for_each_metric_and_device(run_inner):
    inner = run_inner(NEAREST)
    over = "cudamem: peak 2.0 KiB above start is over its budget of 1.0 KiB by 1.0 KiB (cpu)"
    failing = {
        test.nodeid.partition("::")[2]: [title(finding) for finding in test.failing]
        for test in inner.run.tests
        if test.outcome == "failed"
    }
    assert failing == {
        "test_of_module": [over],
        "test_none_is_not_written_down": [over],
        "test_other_device": [over],
        "test_of_parameter[2]": [over],
        "TestBase::test_of_class": [over],
        "TestInherits::test_of_class": [over],
        "test_other_metrics_stay": ["cudamem: allocations 1 is under its lower bound of 2 by 1 (cpu)"],
    }
    assert inner.last == "7 failed, 9 passed"


def test_markers_added_while_collecting(run_inner):
    files = {
        "conftest.py": """
            import pytest
            def pytest_collection_modifyitems(items):
                for item in items:
                    item.add_marker(pytest.mark.memory_budget(peak="1KiB"))
        """,
        "test_it.py": """
            import torch
            def test_it():
                torch.empty(512)
        """,
    }
    inner = run_inner(files)
    assert inner.outcomes == {"test_it": "failed"}
    assert inner.last == "1 failed"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("TestUnit::test_it", "a unittest.TestCase cannot run its method twice"),
        ("test_async", "an async test is run by its own plugin"),
        ("test_given", "hypothesis already repeats the body"),
        ("test_subtests", "subtests would count the repetitions"),
        ("test_benchmark", "pytest-benchmark would count the repetitions"),
        ("test_marked", "pytest-benchmark would count the repetitions"),
        ("test_codspeed", "pytest-codspeed would count the repetitions"),
    ],
)
def test_warmup_is_refused_where_the_body_cannot_be_repeated(run_inner, kind, reason):
    file = """
        import unittest
        import pytest, hypothesis
        from hypothesis import strategies

        @pytest.fixture
        def benchmark(): pass

        @pytest.fixture
        def subtests(): pass

        warm = pytest.mark.memory_budget(peak="1MiB", warmup=1)

        @warm
        class TestUnit(unittest.TestCase):
            def test_it(self): pass

        @warm
        async def test_async(): pass

        @warm
        @hypothesis.given(strategies.integers())
        def test_given(number): pass

        @warm
        def test_subtests(subtests): pass

        @warm
        def test_benchmark(benchmark): pass

        @warm
        @pytest.mark.benchmark
        def test_marked(): pass

        @warm
        @pytest.mark.codspeed_benchmark
        def test_codspeed(): pass

        @warm
        def test_plain(): pass
    """
    inner = run_inner({"test_it.py": file, "pytest.ini": "[pytest]\nmarkers =\n  benchmark\n  codspeed_benchmark\n"})
    line = f"cudamem: test_it.py::{kind}: memory_budget warmup is not possible: {reason}"
    assert line in inner.err.replace("ERROR: ", "").splitlines()
    assert (inner.status, inner.err.count("warmup")) == (USAGE_ERROR, 7)


def test_warmup_is_refused_for_doctests(run_inner):
    files = {
        "conftest.py": """
            import pytest
            def pytest_collection_modifyitems(items):
                for item in items:
                    item.add_marker(pytest.mark.memory_budget(warmup=2))
        """,
        "test_it.py": '''
            def helper():
                """
                >>> 1
                1
                """
        ''',
    }
    inner = run_inner(files, "--doctest-modules")
    assert inner.err.strip() == (
        "ERROR: cudamem: test_it.py::test_it.helper: memory_budget warmup is not possible: "
        "a DoctestItem has no body to repeat"
    )


WRONG_AND_MISSPELT = """
    import pytest

    @pytest.mark.memory_budgt(peak="1MiB")
    def test_misspelt(): pass

    @pytest.mark.memory_budget(peak="4")
    def test_without_a_unit(): pass
"""


def test_one_message_names_wrong_arguments_and_misspelt_markers(run_outer) -> None:
    """And none is said to have come late."""
    inner = run_outer({"test_it.py": WRONG_AND_MISSPELT}, "--cudamem", "-W", "ignore", report=False)
    said = [line for line in (inner.out + inner.err).splitlines() if "cudamem: test_it" in line]
    assert [line.removeprefix("ERROR: ").partition(": write")[0] for line in said] == [
        (
            "cudamem: test_it.py::test_misspelt: unknown marker memory_budgt: did you mean memory_budget? "
            "(register memory_budgt if it is your own)"
        ),
        "cudamem: test_it.py::test_without_a_unit: memory_budget peak: size '4' has no unit",
    ]


@pytest.mark.parametrize("options", [(), ("--cudamem",), ("--no-cudamem",)], ids=" ".join)
def test_what_needs_simulated_cards_is_skipped_without_them(run_inner, options: tuple[str, ...]):
    inner = run_inner(
        """
        import pytest

        @pytest.mark.cudamem(device="simulated", values=False)
        def test_shapes():
            raise AssertionError
        """,
        "-rs",
        *options,
    )
    assert "is for simulated cards alone: run it with --cudamem-device=simulated" in inner.out
    assert inner.last == "1 skipped"


def test_values_are_for_simulated_cards(run_inner):
    inner = run_inner(
        """
        import pytest

        @pytest.mark.cudamem(device="cuda", values=False, reason="none")
        def test_shapes(): ...
        """
    )
    assert "cudamem values=False: write values=False beside device='simulated'" in inner.out + inner.err
    inner = run_inner(
        """
        import pytest

        @pytest.mark.cudamem(device="simulated:h100", values=False)
        def test_shapes(): ...
        """
    )
    why = "device='simulated:h100': write device='simulated', and choose the card by --cudamem-device=simulated:h100"
    assert inner.err.strip() == f"ERROR: cudamem: test_it.py::test_shapes: cudamem {why}"


def test_baselines_of_real_cards_are_for_simulated_ones(run_inner):
    inner = run_inner("def test_it(): ...", "--cudamem", "--cudamem-baseline=simulated")
    assert "--cudamem-baseline=simulated requires --cudamem-device=simulated" in inner.out + inner.err
