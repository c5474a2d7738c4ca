"""Budgets: what a test over its budget looks like, and how that plays with the rest of pytest."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from cudamem_testing.model.sizes import format_size
from cudamem_testing.wording.findings import title
from suites.plugin.inner import KIB

OVER = """
    import pytest, torch

    def takes(kib):
        return torch.empty(kib * 256)

    @pytest.mark.memory_budget(peak="1KiB")
    def test_over():
        takes(3)

    @pytest.mark.memory_budget(peak="3KiB", retained=0, allocations=1, at_least="3KiB")
    def test_just_within():
        takes(3)

    @pytest.mark.memory_budget(at_least="4KiB")
    def test_under():
        takes(3)

    @pytest.mark.memory_budget(peak="1KiB", allocations=1)
    def test_twice_over():
        takes(3), takes(3)

    @pytest.mark.memory_budget(retained=0)
    def test_keeps():
        test_keeps.kept = takes(5)

    @pytest.mark.memory_budget(peak="1KiB", retained=0)
    def test_both():
        test_both.kept = takes(5)

    @pytest.mark.memory_budget(peak="1KiB")
    def test_fails_by_itself():
        takes(3)
        assert 1 == 2

    @pytest.mark.memory_budget(peak="1KiB")
    def test_skips():
        takes(3)
        pytest.skip("late")

    @pytest.mark.xfail(strict=True, reason="known")
    @pytest.mark.memory_budget(peak="1KiB")
    def test_strict():
        takes(3)

    @pytest.mark.xfail(reason="known")
    @pytest.mark.memory_budget(peak="1KiB")
    def test_lenient():
        takes(3)

    @pytest.mark.xfail(raises=ValueError)
    @pytest.mark.memory_budget(peak="1KiB")
    def test_other_reason():
        takes(3)

    @pytest.mark.xfail(strict=True)
    @pytest.mark.memory_budget(retained=0)
    def test_keeps_as_expected():
        test_keeps_as_expected.kept = takes(5)
        raise ValueError

    @pytest.fixture
    def bad_teardown():
        yield
        raise OSError("no luck")

    @pytest.mark.memory_budget(retained=0)
    def test_teardown_fails_by_itself(bad_teardown):
        test_both.more = takes(7)
"""


def test_outcomes_and_texts(run_inner):
    inner = run_inner(OVER, "-rA", "--no-header")
    assert inner.last == "6 failed, 3 passed, 1 skipped, 3 xfailed, 3 errors"
    assert inner.outcomes == {
        "test_over": "failed",
        "test_just_within": "passed",
        "test_under": "failed",
        "test_twice_over": "failed",
        "test_keeps": "error",
        "test_both": "failed",
        "test_fails_by_itself": "failed",
        "test_skips": "skipped",
        "test_strict": "xfailed",
        "test_lenient": "xfailed",
        "test_other_reason": "failed",
        "test_keeps_as_expected": "xfailed",
        "test_teardown_fails_by_itself": "error",
    }
    assert any(line.startswith("test_it.py M.MM.MMMFsxxMx.E ") for line in inner.lines)
    over = "cudamem: peak 3.0 KiB above start is over its budget of 1.0 KiB by 2.0 KiB (cpu)"
    assert inner.section("test_over")[0] == over
    assert inner.section("test_under")[0] == (
        "cudamem: peak 3.0 KiB above start is under its lower bound of 4.0 KiB by 1.0 KiB (cpu)"
    )
    twice = inner.section("test_twice_over")
    assert [line for line in twice if line.startswith("cudamem")] == [
        "cudamem: peak 6.0 KiB above start is over its budget of 1.0 KiB by 5.0 KiB (cpu)",
        "cudamem: allocations 2 is over its budget of 1 by 1 (cpu)",
    ]
    kept = "cudamem: retained 5.0 KiB is over its budget of 0 B by 5.0 KiB (test, cpu)"
    assert inner.section("ERROR at teardown of test_keeps")[0] == kept
    assert inner.section("ERROR at teardown of test_both")[0] == kept
    own = inner.section("test_fails_by_itself")
    assert "E       assert 1 == 2" in own
    place = next(number for number, line in enumerate(own) if line.strip("-") == " cudamem ")
    assert own[place + 1] == over
    own = inner.section("ERROR at teardown of test_teardown_fails_by_itself")
    assert "E       OSError: no luck" in own
    assert "cudamem: retained 7.0 KiB is over its budget of 0 B by 7.0 KiB (test, cpu)" in own
    assert [line for line in inner.lines if line.startswith("OVER BUDGET")] == [
        "OVER BUDGET test_it.py::test_keeps - Failed: cudamem: retained 5.0 KiB is ove...",
        "OVER BUDGET test_it.py::test_both - Failed: cudamem: retained 5.0 KiB is over...",
        "OVER BUDGET test_it.py::test_over - Failed: cudamem: peak 3.0 KiB above start...",
        "OVER BUDGET test_it.py::test_under - Failed: cudamem: peak 3.0 KiB above star...",
        "OVER BUDGET test_it.py::test_twice_over - Failed: cudamem: peak 6.0 KiB above...",
        "OVER BUDGET test_it.py::test_both - Failed: cudamem: peak 5.0 KiB above start...",
        "OVER BUDGET test_it.py::test_other_reason - Failed: cudamem: peak 3.0 KiB abo...",
    ]
    finding = inner.test("test_over").findings[0]
    assert (finding.bytes, str(finding.device), finding.cause) == (2 * KIB, "cpu", "budget peak at most")
    assert inner.test("test_over").budget_used == 3.0
    assert inner.test("test_just_within").budget_used == 1.0
    assert title(inner.test("test_skips").findings[0]) == over


def test_a_strict_xfail_within_its_budget_fails(run_inner):
    file = """
        import pytest, torch
        @pytest.mark.xfail(strict=True)
        @pytest.mark.memory_budget(peak="3KiB")
        def test_it(): torch.empty(256)
    """
    inner = run_inner(file)
    assert inner.last == "1 failed"
    assert "[XPASS(strict)]" in inner.section("test_it")[0]


ABSOLUTE = """
    import pytest, torch

    @pytest.fixture
    def base():
        return torch.empty(10 * 256)

    @pytest.mark.memory_budget(peak="1KiB")
    def test_growth(base):
        torch.empty(256)

    @pytest.mark.memory_budget(peak="1KiB", absolute=True)
    def test_absolute(base):
        torch.empty(256)
"""


def test_absolute(run_inner):
    inner = run_inner(ABSOLUTE)
    assert inner.outcomes == {"test_growth": "passed", "test_absolute": "failed"}
    window = inner.window("test_absolute")
    assert window.start >= 10 * KIB
    peak, over = format_size(window.peak), format_size(window.peak - KIB)
    assert title(inner.test("test_absolute").findings[0]) == (
        f"cudamem: peak {peak} is over its budget of 1.0 KiB by {over} (cpu)"
    )


DEVICES = """
    import pytest, torch

    @pytest.mark.memory_budget(peak={"cuda": "1KiB", "cpu": "3KiB"})
    def test_per_kind():
        torch.empty(2 * 256)

    @pytest.mark.memory_budget(peak="1KiB", device="cuda:7")
    def test_absent():
        torch.empty(2 * 256)

    @pytest.mark.memory_budget(reserved="1KiB")
    def test_unknown_metric():
        torch.empty(2 * 256)

    @pytest.mark.memory_budget(peak={"cuda": "1KiB", "cpu": None})
    def test_lifted():
        torch.empty(2 * 256)
"""


def test_budgets_that_cannot_be_enforced_are_counted(run_inner):
    inner = run_inner(DEVICES, "--cudamem-device=cpu")
    assert inner.last == "4 passed"
    assert inner.run.unenforced == {
        "cuda is not measured here": 2,
        "cuda:7 is not measured here": 1,
        "reserved is unknown on cpu": 1,
    }
    assert [line for line in inner.summary if line.startswith("NOT CHECKED")] == [
        "NOT CHECKED: 2 budgets: cuda is not measured here",
        "NOT CHECKED: 1 budget: cuda:7 is not measured here",
        "NOT CHECKED: 1 budget: reserved is unknown on cpu",
    ]


@pytest.mark.parametrize("quiet", ["-q", "-qq"])
def test_what_is_not_checked_is_said_in_every_verbosity(run_inner, quiet):
    inner = run_inner(DEVICES, "--cudamem-device=cpu", quiet, "-k", "absent or metric")
    assert inner.status == 0
    assert inner.section("cudamem summary")[:3] == [
        "measured 2 tests on cpu",
        "NOT CHECKED: 1 budget: cuda:7 is not measured here",
        "NOT CHECKED: 1 budget: reserved is unknown on cpu",
    ]
    inner = run_inner(DEVICES.replace('{"cuda": "1KiB", "cpu": None}', '"1MiB"'), quiet, "-k", "lifted")
    assert (inner.status, inner.has_section("cudamem summary")) == (0, False)


DEFAULT = """
    import pytest, torch

    def test_plain():
        torch.empty(2 * 256)

    @pytest.mark.memory_budget(peak="4KiB")
    def test_own():
        test_own.kept = torch.empty(2 * 256)

    @pytest.mark.memory_budget(retained="4KiB")
    def test_other_metric():
        torch.empty(2 * 256)
"""


def test_the_budget_of_the_run(run_inner):
    """A marker decides about its own metrics, the budget of the run about the rest."""
    inner = run_inner(DEFAULT, "--cudamem", "--cudamem-budget=peak=1KiB,retained=0")
    assert {test.nodeid[12:]: [one.cause for one in test.findings] for test in inner.run.tests} == {
        "test_plain": ["budget peak at most"],
        "test_own": ["budget retained at most"],
        "test_other_metric": ["budget peak at most"],
    }
    ini = "[pytest]\ncudamem_budget = peak=1KiB,retained=0"  # it belongs to the accounting of every test
    assert run_inner({"test_it.py": DEFAULT, "pytest.ini": ini}).last == "3 passed"


REST = """
    import pytest, torch

    @pytest.mark.memory_budget(peak="1KiB")
    @pytest.mark.parametrize("kib", [1, 2, 3])
    def test_sizes(kib):
        torch.empty(kib * 256)

    def test_last():
        pass
"""


def test_stop_and_last_failed(run_inner):
    assert run_inner(REST, "-x").last == "1 failed, 1 passed"
    assert run_inner(REST, "--maxfail=2").last == "2 failed, 1 passed"
    again = run_inner(REST, "--lf")
    assert (again.last, [*again.outcomes]) == ("2 failed", ["test_sizes[2]", "test_sizes[3]"])
    assert run_inner(REST, "-p", "no:cacheprovider").last == "2 failed, 2 passed"


def test_junit(run_inner, pytester):
    run_inner(REST, "--cudamem", "--junitxml=junit.xml", "-o", "junit_family=xunit2", plugins=["junitxml"])
    suite = ElementTree.parse(pytester.path / "junit.xml").getroot()[0]
    assert {name: suite.attrib[name] for name in ("tests", "failures", "errors")} == {
        "tests": "4",
        "failures": "2",
        "errors": "0",
    }
    cases = {case.attrib["name"]: case for case in suite}
    failure = cases["test_sizes[3]"].find("failure")
    over = "cudamem: peak 3.0 KiB above start is over its budget of 1.0 KiB by 2.0 KiB (cpu)"
    assert failure.attrib["message"].splitlines()[0] == f"Failed: {over}"
    assert failure.text.splitlines()[0] == over
    assert {name: [(one.attrib["name"], one.attrib["value"]) for one in case.iter("property")] for name, case in
            cases.items()} == {
        "test_sizes[1]": [("cudamem.cpu.peak", "1024")],
        "test_sizes[2]": [("cudamem.cpu.peak", "2048")],
        "test_sizes[3]": [("cudamem.cpu.peak", "3072")],
        "test_last": [("cudamem.cpu.peak", "0")],
    }  # fmt: skip


KINDS = {
    "test_unit.py": """
        import unittest
        import pytest, torch

        @pytest.mark.memory_budget(peak="1KiB")
        class TestUnit(unittest.TestCase):
            def test_over(self):
                torch.empty(512)

            def test_within(self):
                torch.empty(256)

            def test_fails_by_itself(self):
                torch.empty(512)
                self.assertEqual(1, 2)

            def test_skips(self):
                self.skipTest("no")

            @unittest.expectedFailure
            def test_expected(self):
                torch.empty(512)
                self.fail()

            def test_subtests(self):
                with self.subTest("one"):
                    torch.empty(512)
    """,
    "test_async.py": """
        import asyncio
        import pytest, torch

        @pytest.mark.asyncio
        @pytest.mark.memory_budget(peak="1KiB")
        async def test_over():
            kept = torch.empty(256)
            await asyncio.sleep(0)
            torch.empty(256)

        @pytest.mark.asyncio
        @pytest.mark.memory_budget(peak="1KiB")
        async def test_within(cuda_memory):
            with cuda_memory.window("inside"):
                torch.empty(256)
                await asyncio.sleep(0)
    """,
    "conftest.py": """
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items:
                if "helper" in item.name:
                    item.add_marker(pytest.mark.memory_budget(peak="1KiB"))
    """,
    "test_doc.py": '''
        import torch

        def helper_over():
            """
            >>> torch.empty(512).shape
            torch.Size([512])
            """

        def helper_within():
            """
            >>> torch.empty(256).shape
            torch.Size([256])
            """
    ''',
}


def test_other_kinds_of_tests(run_inner):
    options = (
        "--doctest-modules",
        "-o",
        "asyncio_default_fixture_loop_scope=function",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    )
    inner = run_inner(KINDS, *options, plugins=["asyncio"])
    assert inner.outcomes == {
        "test_over": "failed",
        "test_within": "passed",
        "test_fails_by_itself": "failed",
        "test_skips": "skipped",
        "test_expected": "xfailed",
        "test_subtests": "failed",
        "test_doc.helper_over": "failed",
        "test_doc.helper_within": "passed",
    }
    assert inner.last == "5 failed, 3 passed, 1 skipped, 1 xfailed"
    over = "cudamem: peak 2.0 KiB above start is over its budget of 1.0 KiB by 1.0 KiB (cpu)"
    assert inner.section("test_over")[0] == over
    for name in ("TestUnit.test_over", "TestUnit.test_subtests", "[doctest] test_doc.helper_over"):
        assert inner.section(name)[0] == over, name
    own = inner.section("TestUnit.test_fails_by_itself")
    assert "E       AssertionError: 1 != 2" in own
    assert over in own
    assert inner.window("test_async.py::test_within", "inside").peak_growth == KIB


def test_the_summary_shows_how_much_of_a_budget_is_used(run_inner):
    inner = run_inner(REST, "--cudamem")
    assert inner.summary == [
        "budget: 2 findings (over budget) in 2 tests",
        "          peak  retained  allocs  budget  test",
        "1.0 to 3.0 KiB       0 B       1    300%  test_it.py::test_sizes[...] x 3",
        "           0 B       0 B       0       -  test_it.py::test_last",
        "measured 4 tests on cpu",
    ]


MANY = """
    import pytest, torch

    @pytest.mark.parametrize("kib", range(2, 32))
    @pytest.mark.memory_budget(peak="1KiB")
    def test_batch(kib): torch.empty(kib * 256)

    @pytest.mark.memory_budget(peak="1KiB")
    def test_other(): torch.empty(1024)
"""


def test_three_of_many_parameters_over_budget_are_shown_in_full(run_inner):
    inner = run_inner(MANY, "--cudamem")
    assert inner.last == "31 failed"
    for kib in range(2, 32):
        title = f"cudamem: peak {kib}.0 KiB above start is over its budget of 1.0 KiB by {kib - 1}.0 KiB (cpu)"
        lines = inner.section(f"test_batch[{kib}]")
        assert lines[0] == title
        assert len(lines) == (5 if kib < 5 else 1)
    assert len(inner.section("test_other")) == 5
    assert inner.summary[1:4] == [
        "           peak  retained  allocs  budget  test",
        "2.0 to 31.0 KiB       0 B       1   >999%  test_it.py::test_batch[...] x 30",
        "        4.0 KiB       0 B       1    400%  test_it.py::test_other",
    ]


SKIPPED = """
    import unittest
    import pytest, torch

    @pytest.mark.memory_budget(peak="1KiB")
    def test_over():
        torch.empty(512)
        pytest.skip("late")

    @pytest.mark.memory_budget(peak="1MiB", at_least={"peak": "4KiB"})
    def test_within():
        torch.empty(512)
        pytest.skip("late")

    def test_region(cuda_memory):
        with cuda_memory.budget(peak="1KiB"):
            torch.empty(512)
            pytest.skip("inside")

    def test_caught(cuda_memory):
        with cuda_memory.limit("1KiB"):
            try:
                torch.empty(512)
            except torch.OutOfMemoryError:
                pytest.skip("the machine is too small")

    class TestUnit(unittest.TestCase):
        @pytest.mark.memory_budget(peak="1KiB")
        def test_unit(self):
            torch.empty(512)
            self.skipTest("late")

    @pytest.mark.xfail
    @pytest.mark.memory_budget(peak="1KiB")
    def test_expected():
        torch.empty(512)
"""


def test_the_budget_of_a_skipped_test_is_in_the_summary(run_inner):
    inner = run_inner(SKIPPED)
    assert inner.last == "5 skipped, 1 xfailed"
    found = {test.nodeid.rpartition("::")[2]: [one.severity.value for one in test.findings] for test in inner.run.tests}
    assert found == {
        "test_over": ["warn"],
        "test_within": ["note"],
        "test_region": ["warn"],
        "test_caught": ["note"],
        "test_unit": ["warn"],
        "test_expected": ["fail"],
    }
    over = "peak 2.0 KiB above start is over its budget of 1.0 KiB by 1.0 KiB"
    assert " ".join(" ".join(inner.summary).split()).startswith(
        "budget: 3 findings (over budget, warning) in 3 tests budget: 1 finding (over budget, xfail) in 1 test "
        f"warning: test_it.py::test_over was skipped after it broke a limit: {over} (cpu) "
        f"warning: test_it.py::test_region was skipped after it broke a limit: {over} (budget, cpu) "
        f"warning: test_it.py::TestUnit::test_unit was skipped after it broke a limit: {over} (cpu) peak "
    )
