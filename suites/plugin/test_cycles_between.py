"""Cycles of tests that begin as the one before left the collector: what it held, froze or collected."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator

import pytest

from cudamem_testing import unfinalized
from cudamem_testing.cycles.watch import CycleWatch
from cudamem_testing.model.findings import Kind
from cudamem_testing.run.cycles import CycleCheck
from cudamem_testing.run.running import LeakSubject
from suites.plugin.inner import Inner

Run = Callable[..., Inner]
HEAD = """
    import gc
    import pytest, torch

    HELD = []
    gc.disable()

    class Node:
        pass

    def ring():
        one = Node()
        one.me, one.big = one, torch.zeros(65536)
"""
#: Their tests by number, and bytes of cycles in each.
PROGRAMS = {
    "held": (
        """
    def test_1(): HELD.extend(gc.get_objects())
    def test_2(): ring(), gc.collect(0)
    def test_3(): HELD.clear()
    def test_4(): ring(), gc.collect(0)
""",
        {2: 262144, 4: 262144},
    ),
    "frozen": (
        """
    def test_1(): gc.freeze()
    def test_2(): ring(), gc.collect(0)
    def test_3(): pass
    def test_4(): ring(), gc.collect(0), gc.unfreeze()
    def test_5(): ring(), gc.collect(0)
""",
        {2: 262144, 4: 262144, 5: 262144},
    ),
    "collected between": (
        """
    @pytest.fixture(autouse=True, scope="module")
    def collects(request):
        class Plugin:
            @pytest.hookimpl(wrapper=True, tryfirst=True)
            def pytest_runtest_protocol(self):
                ring(), gc.collect(0)
                result = yield
                ring(), gc.collect(0)
                return result
        request.config.pluginmanager.register(Plugin())

    def test_1(): pass
    def test_2(): ring(), gc.collect(0)
    def test_3(): pass
    def test_4(): pass
""",
        {2: 262144},
    ),
    "first and last moment": (
        """
    @pytest.fixture(autouse=True)
    def first():
        gc.collect(0)
        yield

    @pytest.fixture
    def late():
        yield
        ring()
        gc.collect(0)

    def test_1(late): pass
    def test_2(): pass
    def test_3(late): pass
""",
        {1: 262144, 3: 262144},
    ),
}


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_cycle_is_found_in_its_own_test(run_inner: Run, name: str) -> None:
    program, expected = PROGRAMS[name]
    inner = run_inner(HEAD + program, "--cudamem", "--cudamem-device=cpu", "--cudamem-cycles=warn")
    found = {
        number: [(one.kind, one.bytes) for one in inner.test(f"test_{number}").findings]
        for number in range(1, len(inner.record.tests) + 1)
    }
    assert {number: judged for number, judged in found.items() if judged} == {
        number: [(Kind.CYCLE, size)] for number, size in expected.items()
    }


def test_after_a_clean_test_the_watch_is_resumed(run_inner: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    original = CycleCheck._begin_anew

    def begin(self: CycleCheck, subject: LeakSubject) -> None:
        begun.append(subject.owner.label.partition("::")[2])
        original(self, subject)

    monkeypatch.setattr(CycleCheck, "_begin_anew", begin)
    watch = CycleWatch()  # the first one of the process keeps the class
    watch.start()
    watch.stop()
    before = sys.getrefcount(unfinalized._Mark)
    run_inner(
        HEAD
        + """
    @pytest.mark.parametrize("number", range(4))
    def test_clean(number): pass

    def test_collects(): gc.collect(0)

    def test_after(): pass

    def test_region(reference_cycles):
        with reference_cycles() as cycles:
            pass

    def test_last(): pass
    def test_the_very_last(): pass
""",
        "--cudamem",
        "--cudamem-device=cpu",
    )
    after = sys.getrefcount(unfinalized._Mark)
    assert begun == ["test_clean[0]", "test_after", "test_last"]
    assert after == before, "no mark is left at the end of the run"
