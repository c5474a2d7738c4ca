"""What was not explained does not count as gone: nothing of it is pruned, lowered or called unseen."""

from __future__ import annotations

import gc
import json
import sys
from types import FrameType

import pytest

from cudamem_testing.cycles import explain
from cudamem_testing.objects.clock import Clock
from cudamem_testing.run import cycles as cycle_check

FILE = "__cudamem__/known.jsonl"
LEAK = """
    import torch
    KEEP = {}
    def test_leak(): KEEP["layer"] = torch.ones(2**16)
    def test_other(): torch.ones(9)
"""
CYCLES = """
    import gc, torch
    class A: pass
    class B: pass
    def make(cls):
        one = cls()
        one.me, one.x = one, torch.ones(2**15)
    def test_cycles():
        make(A), gc.collect()
        make(B), gc.collect()
"""
ON = ("--cudamem", "--cudamem-cycles=fail", "-q")


def recorded(pytester):
    return (pytester.path / FILE).read_text(encoding="utf-8")


@pytest.fixture
def before(run_inner, pytester):
    """The known findings of a project, as its first run recorded them."""

    def run(files):
        assert run_inner(files, *ON, "--cudamem-update=known").status == 0
        return recorded(pytester)

    return run


def gone(run_inner, pytester, files):
    """The control: the same run prunes where everything was explained and nothing was found."""
    run_inner(files, *ON, "--cudamem-prune")
    return recorded(pytester)


def test_a_search_that_ends_at_its_budget(run_inner, pytester, monkeypatch, before):
    lines = before(LEAK)
    with monkeypatch.context() as patch:
        patch.setattr(Clock, "expired", lambda self: True)
        inner = run_inner({}, *ON, "--cudamem-prune", "--cudamem-update=known", "--cudamem-json=report.json")
    assert [finding.verdict.value for finding in inner.test("test_leak").findings] == ["unattributed"]
    assert (inner.test("test_leak").unjudged, inner.test("test_other").unjudged) == (("leak",), ())
    assert "not seen" not in inner.out
    assert recorded(pytester) == lines
    report = json.loads((pytester.path / "report.json").read_text(encoding="utf-8"))
    assert [test["unjudged"] for test in report["tests"]] == [["leak"], []]
    assert run_inner({}, *ON).status == 0
    assert gone(run_inner, pytester, LEAK.replace("KEEP[", "{}[")) == ""


def test_collections_that_are_not_looked_at(run_inner, pytester, monkeypatch, before):
    """After a while of explanations: the cycle of the second class is not met."""
    lines = before(CYCLES)
    assert lines.count("\n") == 2
    with monkeypatch.context() as patch:
        patch.setattr(cycle_check, "MOST_SECONDS", 0)
        inner = run_inner({}, *ON, "--cudamem-prune")
    assert inner.test("test_cycles").unjudged == ("cycle",)
    assert recorded(pytester) == lines
    assert run_inner({}, *ON).status == 0
    assert gone(run_inner, pytester, CYCLES.replace("make(B), ", "")).count("\n") == 1


def test_an_explanation_that_raises(run_inner, pytester, monkeypatch, before):
    lines = before(CYCLES)
    with monkeypatch.context() as patch:
        patch.setattr(explain, "explain", list.__getitem__)  # it raises from C, as from code of the package
        inner = run_inner({}, *ON, "--cudamem-prune")
    assert inner.test("test_cycles").unjudged == ("cycle",)
    assert recorded(pytester) == lines
    assert run_inner({}, *ON).status == 0
    assert gone(run_inner, pytester, CYCLES.replace("one.me, ", "two, ")) == ""


def test_what_could_not_be_judged_at_all(run_inner, pytester, monkeypatch, before):
    lines = before(LEAK + CYCLES)
    with monkeypatch.context() as patch:
        patch.setattr("cudamem_testing.run.leaks.LeakCheck.judge", lambda *given: 1 / 0)
        inner = run_inner({}, *ON, "--cudamem-prune")
    assert inner.test("test_leak").unjudged == ("cycle", "leak", "outside allocator", "pool")
    assert recorded(pytester) == lines


@pytest.mark.parametrize(("asked", "kept"), [("leaks", "leak"), ("cycles", "cycle")])
def test_what_a_marker_leaves_out(run_inner, pytester, before, asked, kept):
    """The lines of that kind stay; those of the other kind are looked for as ever."""
    both = LEAK + CYCLES + "        KEEP['layer'] = torch.ones(2**16)\n"
    both = both.replace("def test_leak(): KEEP", "def test_leak(): {}")
    lines = before(both)
    assert lines.count("\n") == 3
    marked = both.replace(
        "def test_cycles", f"import pytest\n    @pytest.mark.cudamem({asked}='off', reason='x')\n    def test_cycles"
    )
    clean = marked.replace("make(A), gc", "gc").replace("make(B), gc", "gc").replace("KEEP['", "{}['")
    inner = run_inner(clean, *ON, "--cudamem-prune")
    assert inner.test("test_cycles").unjudged == (kept,)
    left = [json.loads(line)["cause"].partition(" ")[0] for line in recorded(pytester).splitlines()]
    assert left == [line for line in ["cycle", "cycle", "leak"] if line == kept]


def test_a_cycle_of_which_nothing_was_read(run_inner, monkeypatch):
    """It went with the garbage, and who closed it is not known: another cause than that of the cycle."""
    monkeypatch.setattr("cudamem_testing.cycles.watch.CycleWatch._look", lambda *given: None)
    gc.disable()  # else a collection could come before that of settling
    try:
        inner = run_inner(CYCLES.replace(", gc.collect()", ""), *ON)
    finally:
        gc.enable()
    assert [finding.verdict.value for finding in inner.test("test_cycles").findings] == ["cycle"]
    assert inner.test("test_cycles").unjudged == ("cycle",)


class InjectedError(Exception):
    """Raised at an unexpected place."""


class Injection:
    """Raises in one of the calls of functions that look for leaks and cycles; the first has number 1."""

    def __init__(self, number: int, modules: tuple[str, ...]) -> None:
        self._number = number
        self._modules = tuple(f"cudamem_testing.{name}" for name in modules)
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and str(frame.f_globals.get("__name__")).startswith(self._modules):
            self.calls += 1
            if self.calls == self._number:
                raise InjectedError  # which also ends the profile


@pytest.mark.slow
@pytest.mark.parametrize("modules", [("cycles", "plugin.cycle", "plugin.retained"), ("leaks", "objects", "plugin.s")])
def test_an_exception_anywhere(run_inner, pytester, before, modules):
    """An error in any step of judging a test drops no line."""
    lines = before(LEAK + CYCLES)

    def run(number):
        injection = Injection(number, modules)
        sys.setprofile(injection)
        try:
            run_inner({}, *ON, "--cudamem-prune")
        finally:
            sys.setprofile(None)
        return injection.calls

    calls = run(0)
    assert calls > 100
    for number in range(1, calls, calls // 12):
        run(number)
        assert recorded(pytester) == lines, number
