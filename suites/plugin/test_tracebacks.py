"""What a failed test shows and keeps: tracebacks without our frames, and memory that goes with the failure."""

from __future__ import annotations

import pytest

from cudamem_testing.model.findings import Severity, Verdict
from cudamem_testing.wording.findings import text, title

FAILING = """
    import pytest, torch

    @pytest.fixture
    def broken():
        raise LookupError("in setup")

    @pytest.fixture(scope="module")
    def broken_module():
        raise LookupError("in a wider setup")

    @pytest.fixture
    def broken_end():
        yield
        raise LookupError("in teardown")

    def test_setup(broken): pass
    def test_wider(broken_module): pass
    def test_teardown(broken_end): pass
    def test_call(): raise LookupError("in the call")
"""


@pytest.mark.parametrize("style", ["long", "short"])
@pytest.mark.parametrize("flags", [("--cudamem",), ()], ids=["on", "off"])
def test_tracebacks_are_the_users(run_inner, style, flags):
    inner = run_inner(FAILING, *flags, f"--tb={style}")
    assert inner.last == "1 failed, 1 passed, 3 errors"
    assert "plugin" not in inner.out.replace("plugins:", "")  # the folder of our files


OVER = """
    import pytest, torch

    KEPT = []

    @pytest.mark.memory_budget(peak=0)
    def test_over():
        torch.ones(10)

    def test_leaks():
        KEPT.append(torch.ones(2**15))
"""


PLACES = """
    def pytest_runtest_logreport(report):
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None:
            print(f"{report.when}: {crash.path}:{crash.lineno}")
"""


def test_a_finding_is_placed_at_its_test(run_inner):
    inner = run_inner({"test_it.py": OVER, "conftest.py": PLACES}, "--cudamem", "-s", "--tb=line")
    place = inner.folder / "test_it.py"
    assert [line.rpartition(" ")[2] for line in inner.lines if "call: " in line or "teardown: " in line] == [
        f"{place}:5",
        f"{place}:9",
    ]
    over = "Failed: cudamem: peak 40 B above start is over its budget of 0 B by 40 B (cpu)"
    assert inner.lines.count(f"{place}:5: {over}") == 1


def test_full_trace_shows_every_frame(run_inner):
    inner = run_inner(FAILING, "--cudamem", "--full-trace", "-k", "test_setup")
    assert "hooks.py" in inner.out


ARGUMENTS = """
    import torch

    def test_chained():
        try:
            raise ValueError(torch.ones(1024 * 256))
        except ValueError as error:
            raise RuntimeError(torch.ones(1024 * 512)) from error

    def test_next():
        pass
"""


@pytest.mark.usefixtures("collector_off", "whole_heap")  # ``sys`` holds the failure
def test_arguments_of_a_failure_go_with_it(run_inner):
    """Clearing frames does not reach what the error itself refers to: that goes before the next test."""
    inner = run_inner(ARGUMENTS, "--cudamem")
    assert inner.last == "1 failed, 1 passed"
    found = inner.test("test_chained").findings
    assert [(finding.verdict, finding.severity) for finding in found] == [(Verdict.TRACEBACK, Severity.NOTE)] * 2
    assert sorted(finding.bytes for finding in found) == [2**20, 2**21]
    assert all("module sys > last_" in finding.holder for finding in found)  # ``last_exc`` or ``last_value``
    assert inner.test("test_next").findings == ()
    before, after = inner.test("test_chained").whole[0], inner.test("test_next").whole[0]
    assert (after.start, after.retained) == (before.start, 0)


OF_A_FIXTURE = """
    import pytest, torch

    @pytest.fixture(scope="class")
    def model():
        yield torch.ones(1024 * 256)

    class TestModel:
        def test_last_user(self, model):
            raise ValueError(model)

    def test_next():
        pass
"""


@pytest.mark.usefixtures("collector_off", "whole_heap")  # ``sys`` holds the failure
def test_a_failure_that_refers_to_a_wider_fixture(run_inner):
    inner = run_inner(OF_A_FIXTURE, "--cudamem", "--tb=line")
    assert inner.last == "1 failed, 1 passed"
    (finding,) = inner.test("test_last_user").findings
    assert (finding.verdict, finding.severity) == (Verdict.TRACEBACK, Severity.NOTE)
    assert title(finding) == "cudamem: fixture 'model': 1.0 MiB retained (1 block, cpu)"
    before, after = inner.test("test_last_user").whole[0], inner.test("test_next").whole[0]
    assert (before.retained, after.start, after.retained) == (0, before.start - 2**20, 0)


ENDING = """
    import pytest, torch

    @pytest.fixture(scope="class")
    def model():
        x = torch.ones(1024 * 256)
        yield x
        raise LookupError

    class TestModel:
        def test_last_user(self, model):
            pass

    def test_next():
        pass
"""


@pytest.mark.usefixtures("collector_off")
def test_a_wider_fixture_that_fails_at_its_end(run_inner):
    """The error that is on its way holds it: no leak of the fixture."""
    inner = run_inner(ENDING, "--cudamem", "--tb=line")
    assert inner.last == "2 passed, 1 error"
    (finding,) = inner.test("test_last_user").findings
    assert (finding.verdict, finding.severity) == (Verdict.TRACEBACK, Severity.NOTE)
    before, after = inner.test("test_last_user").whole[0], inner.test("test_next").whole[0]
    assert (before.retained, after.start, after.retained) == (0, before.start - 2**20, 0)


TEARDOWN = """
    import pytest, torch

    @pytest.fixture
    def given():
        yield torch.ones(1024 * 256)
        also = torch.ones(1024 * 256)
        raise LookupError

    def test_end(given):
        pass

    def test_next():
        pass
"""


@pytest.mark.usefixtures("collector_off")
def test_locals_of_a_failed_teardown_go_before_the_next_test(run_inner):
    inner = run_inner(TEARDOWN, "--cudamem")
    assert inner.last == "2 passed, 1 error"
    before, after = inner.test("test_end").whole[0], inner.test("test_next").whole[0]
    assert (before.retained, after.start, after.retained) == (2**20, before.start, 0)


SUSPENDED = """
    import pytest, torch

    @pytest.fixture(scope="module")
    def server():
        try:
            raise ConnectionError
        except ConnectionError as error:
            first = error
        closed = []
        try:
            yield first, closed
        finally:
            closed.append(True)

    def test_fails(server):
        raise RuntimeError("no connection") from server[0]

    def test_still_open(server):
        assert server[1] == []
"""


def test_a_wider_fixture_that_caught_the_cause_stays_open(run_inner):
    assert run_inner(SUSPENDED, "--cudamem").last == "1 failed, 1 passed"


DEBUGGER = """
    import pdb
    from pathlib import Path

    class Debugger(pdb.Pdb):
        def interaction(self, frame, error):
            traceback = getattr(error, "__traceback__", error)
            while traceback.tb_next is not None:
                traceback = traceback.tb_next
            Path("seen").write_text(str(traceback.tb_frame.f_locals["held"].sum().item()))
"""
DEBUGGED = """
    import weakref
    import torch
    ALIVE = []

    def test_fails():
        held = torch.ones(32 << 10)
        ALIVE.append(weakref.ref(held))
        raise ValueError("look at it")

    def test_next():
        assert [one() for one in ALIVE] == [None]
"""


@pytest.mark.usefixtures("collector_off")
def test_a_debugger_sees_the_locals_and_the_next_test_does_not(run_inner):
    inner = run_inner({"looks.py": DEBUGGER, "test_it.py": DEBUGGED}, "--cudamem", "--pdb", "--pdbcls=looks:Debugger")
    assert inner.last == "1 failed, 1 passed"
    assert (inner.folder / "seen").read_text() == "32768.0"
    assert inner.run.findings == inner.test("test_next").findings == ()


SUBTESTS = """
    import torch, weakref

    TENSORS = []

    def helper(n):
        x, y = torch.ones(2**18), torch.ones(2**18)
        TENSORS.extend(map(weakref.ref, (x, y)))
        assert n == 9

    def test_parts(subtests):
        for n in range(3):
            with subtests.test(n=n):
                helper(n)

    def test_next():
        assert [one() for one in TENSORS] == [None] * 6
"""


def test_the_locals_of_every_failed_subtest_go(run_inner):
    """pytest-rerunfailures keeps the error of each; without it only the last one is kept."""
    options = ("--cudamem", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    for plugins, kept in (((), 2), (("rerunfailures",), 6)):
        inner = run_inner(SUBTESTS, *options, plugins=plugins)
        assert inner.outcomes == {"test_parts": "failed", "test_next": "passed"}
        (finding,) = inner.test("test_parts").findings
        assert (finding.verdict.value, finding.bytes) == ("traceback", kept * 2**20)


def test_what_the_error_refers_to_is_not_reported_as_freed(run_inner):
    """pytest-rerunfailures keeps errors until the run ends, and clearing their frames does not free their values."""
    file = """
        import torch

        def test_value():
            error = LookupError()
            error.state = torch.empty(2**18)
            raise error

        def test_frame():
            local = torch.empty(2**18)
            raise LookupError
    """
    for plugins in ((), ("rerunfailures",)):
        inner = run_inner(file, "--cudamem", "-W", "ignore::pytest.PytestAssertRewriteWarning", plugins=plugins)
        shown = {test.nodeid.rpartition("::")[2]: [*map(text, test.findings)] for test in inner.run.tests}
        of_error = "traceback: the error of the failed test refers to it, not only a frame"
        assert [of_error in one for one in shown["test_value"]] == [True]
        assert [of_error in one for one in shown["test_frame"]] == [False]
        assert ["released before the next test" in one for one in shown["test_frame"]] == [True]
