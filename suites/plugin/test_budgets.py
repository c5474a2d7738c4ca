"""Budgets at work: what a test over its budget looks like, and how that plays with the rest of pytest."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from cudamem_testing.model.findings import Kind
from cudamem_testing.model.sizes import format_size
from cudamem_testing.report.files import read_json
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
    assert inner.test("test_skips").findings[0].message == over


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
def test_what_a_failed_test_retains_is_told_below_its_own_failure(run_inner, flags):
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
    assert [(one.message, one.severity.value) for one in inner.test("test_fails").findings] == [
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
        test.nodeid[12:]: [one.message for one in test.findings if one.kind is Kind.BUDGET] for test in inner.run.tests
    }
    assert {name: budget[name] for name in ("test_skips", "test_expected", "test_setup_fails", "test_fails_twice")} == {
        "test_skips": [],
        "test_expected": [],
        "test_setup_fails": [],
        "test_fails_twice": [over],
    }


def test_what_a_failed_test_retains_is_not_judged_while_a_debugger_keeps_its_frames(run_inner):
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
    assert inner.test("test_absolute").findings[0].message == (
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
    assert [line for line in inner.summary if line.startswith("not enforced")] == [
        "not enforced: 2 budgets (cuda is not measured here)",
        "not enforced: 1 budget (cuda:7 is not measured here)",
        "not enforced: 1 budget (reserved is unknown on cpu)",
    ]


def test_no_selected_device(run_inner):
    inner = run_inner(DEVICES, "--cudamem-device=cuda:7", "-k", "per_kind or unknown")
    assert inner.last == "2 passed, 2 deselected"
    reasons = ("cpu is not measured here", "cuda is not measured here", "nothing is measured here")
    assert inner.run.unenforced == dict.fromkeys(reasons, 1)
    assert "note: cuda:7 is not on this machine: nothing is measured" in inner.summary


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
    """A marker stands for its own metrics; the budget of the run for the rest."""
    inner = run_inner(DEFAULT, "--cudamem", "--cudamem-budget=peak=1KiB,retained=0")
    assert {test.nodeid[12:]: [one.cause for one in test.findings] for test in inner.run.tests} == {
        "test_plain": ["budget peak at most"],
        "test_own": ["budget retained at most"],
        "test_other_metric": ["budget peak at most"],
    }
    off = run_inner(DEFAULT, "--cudamem-budget=peak=1KiB,retained=0")  # it belongs to the accounting of every test
    assert off.last == "3 passed"


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
    run_inner(REST, "--cudamem", "--junitxml=junit.xml", "-o", "junit_family=xunit2")
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
    for title in ("TestUnit.test_over", "TestUnit.test_subtests", "[doctest] test_doc.helper_over"):
        assert inner.section(title)[0] == over, title
    own = inner.section("TestUnit.test_fails_by_itself")
    assert "E       AssertionError: 1 != 2" in own
    assert over in own
    assert inner.window("test_async.py::test_within", "inside").peak_growth == KIB


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 8 has no subtests")
def test_subtests(run_inner):
    file = """
        import pytest, torch
        @pytest.mark.memory_budget(peak="1KiB")
        def test_parts(subtests):
            for number in range(3):
                with subtests.test(number=number):
                    torch.empty(256 * number)
                    assert number != 1
    """
    inner = run_inner(file)
    record = inner.test("test_parts")
    assert record.outcome == "failed"
    assert [finding.message for finding in record.failing] == [
        "cudamem: peak 2.0 KiB above start is over its budget of 1.0 KiB by 1.0 KiB (cpu)"
    ]
    assert "assert 1 != 1" in inner.out


PARTS = """
    import unittest
    import pytest

    @pytest.fixture
    def earlier(subtests):
        with subtests.test("setup"):
            assert 0

    @pytest.fixture
    def later(subtests):
        yield
        with subtests.test("teardown"):
            assert 0

    @pytest.fixture
    def breaks():
        yield
        raise RuntimeError

    def test_one_fails(subtests):
        for number in range(3):
            with subtests.test(number=number):
                assert number != 1

    def test_one_skips_one_is_expected(subtests):
        with subtests.test("skips"):
            pytest.skip("no")
        with subtests.test("is expected"):
            pytest.xfail("no")

    def test_fails_then_skips(subtests):
        with subtests.test():
            assert 0
        pytest.skip("the rest")

    def test_fails_then_is_expected(subtests):
        with subtests.test():
            assert 0
        pytest.xfail("the rest")

    @pytest.mark.xfail
    def test_expected(subtests):
        with subtests.test():
            assert 0

    @pytest.mark.xfail(strict=True)
    def test_strictly_expected(subtests):
        with subtests.test():
            assert 0

    def test_teardown_breaks(subtests, breaks):
        with subtests.test():
            assert 0

    def test_setup_fails(earlier): pass
    def test_teardown_fails(later): pass

    class TestUnit(unittest.TestCase):
        def test_unit(self):
            with self.subTest("one"):
                assert 0
"""


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 8 has no subtests")
def test_a_test_with_a_failed_subtest_has_failed(run_inner):
    """The run fails: pytest counts it beside the test, which may pass, be skipped or be expected to fail."""
    inner = run_inner(PARTS, "--cudamem")
    assert inner.outcomes == {
        "test_one_fails": "failed",
        "test_one_skips_one_is_expected": "passed",
        "test_fails_then_skips": "failed",
        "test_fails_then_is_expected": "failed",
        "test_expected": "xpassed",
        "test_strictly_expected": "failed",
        "test_teardown_breaks": "failed",
        "test_setup_fails": "failed",
        "test_teardown_fails": "failed",
        "test_unit": "failed",
    }


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 8 has no subtests")
def test_a_budget_that_a_subtest_breaks(run_inner, pytester):
    """The subtest has failed, though the test function returns; one that catches the error has handled it."""
    file = """
        import pytest, torch

        def test_breaks(subtests, cuda_memory):
            with subtests.test():
                with cuda_memory.budget(peak="1KiB"):
                    torch.empty(512)

        def test_handles(subtests, cuda_memory):
            with subtests.test():
                with pytest.raises(AssertionError), cuda_memory.budget(peak="1KiB"):
                    torch.empty(512)
    """
    inner = run_inner(file, "--cudamem-json=report.json")
    over = "cudamem: peak 2.0 KiB above start is over its budget of 1.0 KiB by 1.0 KiB (budget, cpu)"
    for run in (inner.run, read_json(pytester.path / "report.json")):
        assert [(one.message, one.severity.value) for one in run.test("test_breaks").findings] == [(over, "fail")]
        assert [(one.message, one.severity.value) for one in run.test("test_handles").findings] == [(over, "note")]
        assert [(test.outcome, len(test.failing)) for test in run.tests] == [("failed", 1), ("passed", 0)]


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 8 has no subtests")
def test_a_subtest_that_fails_in_the_first_attempt_alone(run_inner):
    """The run passes, and so has the last attempt; where it fails each time, the last attempt has failed."""
    file = """
        import pytest
        ATTEMPTS = []

        @pytest.mark.parametrize("times", [1, 2])
        def test_parts(subtests, times):
            ATTEMPTS.append(times)
            with subtests.test():
                assert ATTEMPTS.count(times) > times
    """
    options = ("--cudamem", "--reruns=1", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    inner = run_inner(file, *options, plugins=["rerunfailures"])
    assert [(test.nodeid.rpartition("::")[2], test.attempt, test.outcome) for test in inner.run.tests] == [
        ("test_parts[1]", 1, "rerun"),
        ("test_parts[1]", 2, "passed"),
        ("test_parts[2]", 1, "rerun"),
        ("test_parts[2]", 2, "failed"),
    ]
    assert inner.last == "2 failed, 1 passed, 2 rerun"


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 8 has no subtests")
def test_a_test_with_a_failed_subtest_is_not_compared_with_its_baseline(run_inner):
    file = """
        import pytest, torch

        @pytest.mark.memory_baseline
        @pytest.mark.parametrize("fails", [False, True])
        def test_parts(subtests, fails):
            with subtests.test():
                torch.empty(256)
                assert not fails
    """
    inner = run_inner(file, "--cudamem-json=report.json")
    measured = [(test.outcome, len(test.measured)) for test in inner.run.tests]
    assert measured == [("passed", 1), ("failed", 0)]


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 8 has no subtests")
@pytest.mark.parametrize("flags", [(), ("--cudamem",)])
def test_what_a_test_with_subtests_retains(run_inner, flags):
    """A subtest that is skipped, or expected to fail, is not the test; one that failed has failed it."""
    file = """
        import pytest, torch
        KEPT = []

        @pytest.mark.memory_budget(retained=0)
        @pytest.mark.parametrize("how", ["skip", "xfail", "fail"])
        def test_parts(subtests, how):
            with subtests.test():
                KEPT.append(torch.empty(256))
                getattr(pytest, how)("it")
    """
    inner = run_inner(file, *flags)
    over = "cudamem: retained 1.0 KiB is over its budget of 0 B by 1.0 KiB (test, cpu)"
    assert inner.section("ERROR at teardown of test_parts[skip]")[0] == over
    assert inner.section("ERROR at teardown of test_parts[xfail]")[0] == over
    assert inner.section("test_parts[fail]")[:3] == ["contains 1 failed subtest", BELOW, over]
    assert [(test.outcome, test.findings[0].severity.value) for test in inner.run.tests] == [
        ("error", "fail"),
        ("error", "fail"),
        ("failed", "warn"),
    ]


def test_the_summary_shows_how_much_of_a_budget_is_used(run_inner):
    inner = run_inner(REST, "--cudamem")
    assert inner.summary == [
        "budget: 2 findings (over budget) in 2 tests",
        "   peak  retained  allocs  budget  test",
        "3.0 KiB       0 B       1    300%  test_it.py::test_sizes[3]",
        "2.0 KiB       0 B       1    200%  test_it.py::test_sizes[2]",
        "1.0 KiB       0 B       1    100%  test_it.py::test_sizes[1]",
        "    0 B       0 B       0       -  test_it.py::test_last",
        "measured 4 tests on cpu",
    ]


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
    """Whatever is checked beside, and however little it is."""
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
    import gc, pytest, torch
    KEPT = []

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
        KEPT.append(torch.empty(2**22, dtype=torch.uint8))

    def test_earlier_again():
        Node()

    @pytest.mark.memory_budget(at_least={"retained": "4MiB"})
    def test_keeps_at_least():
        KEPT.append(torch.empty(2**22, dtype=torch.uint8))

    def test_before_the_collector_is_back(): pass
"""


@pytest.mark.parametrize("switches", [(), ("--cudamem", "--cudamem-leaks=off", "--cudamem-cycles=off"), ("--cudamem",)])
def test_garbage_of_earlier_tests_does_not_hide_what_a_test_retains(run_inner, switches):
    inner = run_inner(EARLIER, *switches)
    assert [inner.test(name).whole[0].retained for name in ("test_keeps", "test_keeps_at_least")] == [2**22, 2**22]
    (over,) = [one for one in inner.test("test_keeps").findings if one.kind is Kind.BUDGET]
    start = inner.test("test_keeps").whole[0].start
    assert str(over).splitlines()[:2] == [
        "cudamem: retained 4.0 MiB is over its budget of 0 B by 4.0 MiB (test, cpu)",
        f"start {format_size(start)}, end {format_size(start + 2**22)}",
    ]
    changed = "garbage of earlier tests changed cpu by -8.0 MiB, not counted here"
    assert (f"note: {changed}" in over.details) == (switches != ("--cudamem",))  # there each test's own is collected
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
