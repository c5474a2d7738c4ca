"""Budgets, records and baselines of tests with subtests."""

from __future__ import annotations

import pytest

from cudamem_testing.report.report_files import read_json
from cudamem_testing.wording.findings import title

pytestmark = pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 8 has no subtests")

BELOW = "------------------------------- cudamem teardown -------------------------------"


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
    assert [title(finding) for finding in record.failing] == [
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
        assert [(title(one), one.severity.value) for one in run.test("test_breaks").findings] == [(over, "fail")]
        assert [(title(one), one.severity.value) for one in run.test("test_handles").findings] == [(over, "note")]
        assert [(test.outcome, len(test.failing)) for test in run.tests] == [("failed", 1), ("passed", 0)]


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


def test_a_failed_subtest_excludes_its_test_from_baselines(run_inner):
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
