"""Objects of tests that answer for themselves: what they keep is found, and none of their code runs meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from suites.plugin.inner import Inner

Run = Callable[..., Inner]

METACLASS = """
    import sys, torch

    KEEP, CALLED = [], []

    def frames():
        frame = sys._getframe(1)
        while frame:
            yield frame
            frame = frame.f_back

    class Meta(type):
        def __getattribute__(cls, name):
            if any("cudamem_testing/" in frame.f_code.co_filename for frame in list(frames())[:4]):
                CALLED.append(name)
                raise RuntimeError("metaclass code ran")
            return super().__getattribute__(name)

    def local(meta):
        class Odd(metaclass=meta):
            pass
        return Odd()

    def test_odd():
        obj = local(Meta)
        obj.x = torch.ones(2**16)
        KEEP.append(obj)

    def test_plain():
        obj = local(type)
        obj.x = torch.ones(2**16)
        KEEP.append(obj)

    def test_nothing_ran():
        assert CALLED == []
"""

ERRORS = """
    import pytest, torch

    class Answering(Exception):
        def __getattr__(self, name):
            if name == "cudamem":
                return "LEAKED"
            raise AttributeError(name)

    class Refusing(Exception):
        def __getattr__(self, name):
            raise RuntimeError(name) if name == "cudamem" else AttributeError(name)

    @pytest.mark.parametrize("error", [Answering, Refusing, ValueError])
    def test_fails(error):
        kept = torch.ones(2**16)
        raise error
"""


def test_a_metaclass_does_not_stop_the_search(run_inner: Run) -> None:
    result = run_inner(METACLASS, "--cudamem")
    assert result.last == "3 passed, 2 errors"
    found = {test.nodeid.rpartition("::")[2]: [one.holder for one in test.findings] for test in result.run.tests}
    assert found == {
        "test_odd": ["module test_it > KEEP (list)[0] > Odd.x"],
        "test_plain": ["module test_it > KEEP (list)[1] > Odd.x"],
        "test_nothing_ran": [],
    }


def test_errors_with_their_own_attributes_are_the_tests(run_inner: Run) -> None:
    result = run_inner(ERRORS, "--cudamem", "--tb=line", "-rA")
    assert result.last == "3 failed"
    failed = [line for line in result.lines if line.startswith(("FAILED", "LEAKED", "ERROR"))]
    assert [line.split(" - ")[0] for line in failed] == [
        "FAILED test_it.py::test_fails[Answering]",
        "FAILED test_it.py::test_fails[Refusing]",
        "FAILED test_it.py::test_fails[ValueError]",
    ]
    verdicts = {one.verdict.value for test in result.run.tests for one in test.findings}
    assert verdicts <= {"traceback"}


MOCKED = """
    import ast, builtins, gc, io, linecache, os, sys, time, tokenize
    from unittest import mock

    import pytest, torch

    KEEP = []
    TARGETS = [
        (gc, "collect"), (gc, "get_stats"), (time, "monotonic"), (time, "time_ns"),
        (time, "sleep"), (linecache, "getline"), (linecache, "getlines"), (tokenize, "open"),
        (ast, "parse"), (builtins, "open"), (io, "open"),
    ]

    class Node:
        def __init__(self):
            self.me = self
            self.weight = torch.ones(2**16)

    @pytest.fixture(scope="module", autouse=MOCKS)
    def mocks():
        patches = [mock.patch.object(*target) for target in TARGETS]
        mocks = [patch.start() for patch in patches]
        yield
        for patch in patches:
            patch.stop()
        assert [(target[1], one.call_args_list[:2]) for target, one in zip(TARGETS, mocks) if one.called] == []

    def test_leak():
        KEEP.append(torch.ones(2**16))

    def test_cycle():
        Node()

    @pytest.mark.memory_budget(peak="1KiB")
    def test_budget():
        torch.ones(2**16)
"""


@pytest.mark.parametrize("mocks", [True, False])
def test_mocks_of_a_module_change_no_finding(run_inner: Run, mocks: bool) -> None:
    result = run_inner(MOCKED.replace("MOCKS", str(mocks)), "--cudamem", "--cudamem-cycles=fail")
    assert result.last == "1 failed, 2 passed, 2 errors"
    assert "                        | torch.ones(2**16)" in result.lines
    assert "   closed by  test_it.py:15: self.me = self" in result.lines
    assert "      held by    module test_it > KEEP (list)[0]" in result.lines


def test_a_test_counts_the_same_garbage(run_inner: Run):
    """One that counts what a collection finds, with memory that it freed or a cycle kept."""
    counting = """
        import gc
        from collections import Counter
        import pytest, torch

        @pytest.mark.parametrize("case", range(5))
        def test_counted(case):
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            gc.set_debug(0)
            with open("counted.txt", "a") as out:
                print(sorted(Counter(type(one).__name__ for one in gc.garbage).items()), file=out)
            gc.garbage.clear()
            big = [torch.zeros(65536)]
            if case % 2:
                big.append(big)
                del big
                gc.collect()
    """
    told = []
    for argument in ("--no-cudamem", "--cudamem"):
        inner = run_inner(counting, argument, "--cudamem-device=cpu", "--cudamem-cycles=warn")
        told.append((inner.folder / "counted.txt").read_text(encoding="utf-8").splitlines())
        (inner.folder / "counted.txt").unlink()
    assert told[1][2:] == told[0][2:]  # the first tests find what was left by imports
