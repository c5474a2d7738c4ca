"""Catching cycles: watches, regions, one collection; and the collector as it was found."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cudamem_testing
from cudamem_testing import Cycle, find_cycles, reference_cycles, warn_cycles, watch_cycles
from cudamem_testing.cycles.watch import library
from cudamem_testing.guards import CollectorPaused
from cudamem_testing.unfinalized import GarbageWatch, _makes_dictionaries


class Node:
    """Anything with attributes."""


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector is as it was found."""
    gc.collect()
    before = gc.get_debug(), [*gc.callbacks], gc.isenabled(), gc.get_freeze_count()
    yield
    assert (gc.get_debug(), gc.callbacks, gc.isenabled(), gc.get_freeze_count()) == before
    assert gc.garbage == []


def ring(size: int = 256) -> None:
    one: Any = Node()
    one.me, one.big = one, torch.ones(size)


@contextlib.contextmanager
def watched(look: Callable[[list[object]], object], kind: type = Node) -> Iterator[None]:
    """Every collection with an instance of a class in it is looked at."""
    watch = GarbageWatch((kind,), lambda garbage, parts: look(garbage) and False, lambda: False, lambda error: None)
    watch.start(library())
    try:
        yield
    finally:
        watch.stop()


def test_the_probe_says_whether_reading_keeps_garbage() -> None:
    """The same without a watch: a callback that reads the attributes of garbage, and whether it is there afterwards."""

    class Read(Node):
        pass

    one, mark = Read(), Node()
    one.me, mark.me = one, mark  # type: ignore[attr-defined]
    address = id(one)
    callback = weakref.ref(mark, lambda _: vars(ctypes.cast(address, ctypes.py_object).value) and None)
    del one, mark
    gc.collect()
    assert callback() is None
    kept = any(type(obj) is Read for obj in gc.get_objects())
    assert _makes_dictionaries() is kept
    gc.collect()
    assert not any(type(obj) is Read for obj in gc.get_objects())


def test_one_collection() -> None:
    gc.collect()
    ring()
    (cycle,) = find_cycles()
    assert cycle.text.startswith("Node.__dict__['me'] -> Node\nkeeps 1.0 KiB in 1 tensor: big float32[256]")
    assert (cycle.bytes, cycle.devices, cycle.project) == (1024, ("cpu",), True)
    assert find_cycles() == ()


def test_the_garbage_is_gone_at_once() -> None:
    one: Any = Node()
    one.me, one.big = one, torch.ones(256)
    dead = weakref.ref(one.big), weakref.ref(one)
    finalized: list[int] = []
    weakref.finalize(one, finalized.append, 1)
    with reference_cycles() as cycles:
        del one
    assert (dead[0](), dead[1](), finalized) == (None, None, [1])
    assert len(cycles) == 1


def test_a_watch_and_its_remover() -> None:
    found: list[Cycle] = []
    remove = watch_cycles(found.append)
    try:
        ring()
        gc.collect()
        assert len(found) == 1
        with CollectorPaused():  # an automatic collection while the ring is made would move it on to the next one
            ring()
            gc.collect(0)
        assert len(found) == 2, "in any generation"
    finally:
        remove()
    remove()
    ring()
    gc.collect()
    assert len(found) == 2


def test_instances_of_a_class() -> None:
    class Wanted:
        pass

    found: list[Cycle] = []
    remove = watch_cycles(found.append, kind=Wanted)
    try:
        ring()
        one: Any = Wanted()
        one.me = one
        del one
        gc.collect()
    finally:
        remove()
    assert [cycle.chain for cycle in found] == [("Wanted.__dict__['me']", "Wanted")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_of_the_callback_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(cycle: Cycle) -> None:
        raise RuntimeError("the callback's own")

    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(str(what.exc_value)))
    remove = watch_cycles(fail)
    try:
        one: Any = Node()
        one.me, one.big = one, torch.ones(256)
        dead = weakref.ref(one.big)
        del one
        gc.collect()
        assert (told, dead()) == (["the callback's own"], None)
        assert (gc.get_debug(), gc.garbage) == (0, [])
    finally:
        remove()


@pytest.mark.slow
def test_a_region_counts_only_what_it_made() -> None:
    ring()
    with reference_cycles() as cycles:
        torch.ones(256)
    cycles.assert_none()
    assert (cycles.found, cycles.text, str(cycles), cycles.dot(), cycles.html()) == (
        (),
        "no cycles",
        "no cycles",
        "",
        "",
    )
    with reference_cycles() as cycles:
        ring()
        gc.collect()
        ring()
    with pytest.raises(
        AssertionError, match=r"^reference cycles keep memory:\n\nNode.__dict__\['me'\] -> Node\nkeeps 2.0 KiB"
    ):
        cycles.assert_none()
    cycles.assert_cycle(
        """
        Node.__dict__['me'] -> Node
        keeps 2.0 KiB in 2 tensors: big float32[256], big float32[256]
        """
    )


def test_what_cannot_be_explained_is_no_clean_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudamem_testing.cycles.explain.explain", None)
    message = r"^garbage with tensors was not explained: TypeError: 'NoneType' object is not callable$"
    with pytest.raises(RuntimeError, match=message), reference_cycles():
        ring()
    ring()
    with pytest.raises(RuntimeError, match=message):
        find_cycles()
    with pytest.raises(ZeroDivisionError), reference_cycles():  # noqa: PT012
        ring()
        gc.collect()
        raise ZeroDivisionError


@pytest.mark.slow
def test_a_class_that_runs_code_for_every_question() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise SystemExit

    class Hostile(metaclass=Meta):
        def __getattribute__(self, name: str) -> Any:
            raise SystemExit

    with reference_cycles() as cycles:
        one = object.__new__(Hostile)
        object.__setattr__(one, "me", one)
        object.__setattr__(one, "big", torch.ones(256))
        del one
    assert [cycle.bytes for cycle in cycles.found] == [1024]


def test_an_error_in_a_region_passes() -> None:
    with pytest.raises(KeyError), reference_cycles():  # noqa: PT012
        ring()
        raise KeyError("x")


def test_a_warning_links_to_a_page_that_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    remove = warn_cycles(str(tmp_path))
    try:
        with caplog.at_level(logging.WARNING, "cudamem_testing"):
            ring()
            gc.collect()
    finally:
        remove()
    (page,) = tmp_path.iterdir()
    (line,) = caplog.messages
    assert line.startswith("a reference cycle keeps 1.0 KiB in 1 tensor: big float32[256]\n")
    assert line.endswith(f"shown in {page}")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_with_the_collector_off_and_frozen_objects() -> None:
    gc.disable()
    try:
        ring()
        assert len(find_cycles()) == 1
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_garbage_saved_for_debugging_is_left_to_the_user() -> None:
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        ring()
        seen: list[list[object]] = []
        with watched(lambda garbage: seen.append([*map(type, garbage)])):
            gc.collect()
        assert gc.get_debug() == gc.DEBUG_SAVEALL
        assert sum(type(one) is Node for one in gc.garbage) == 1
        assert Node in seen[0]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def test_other_callbacks_see_nothing() -> None:
    seen: list[tuple[str, int, int]] = []

    def other(phase: str, info: object) -> None:
        seen.append((phase, gc.get_debug(), len(gc.garbage)))

    gc.callbacks.append(other)
    try:
        with watched(lambda garbage: None):
            ring()
            gc.collect()
    finally:
        gc.callbacks.remove(other)
    assert seen[:2] == [("start", 0, 0), ("stop", 0, 0)]


def test_a_profiler_of_the_user_keeps_working() -> None:
    calls: list[str] = []
    sys.setprofile(lambda frame, event, arg: calls.append(event))
    try:
        ring()
        find_cycles()
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert "call" in calls


@pytest.mark.parametrize("inner", [watch_cycles, lambda callback: watch_cycles(callback, None)])
def test_two_watches_at_once(inner: Callable[[Any], Callable[[], None]]) -> None:
    first: list[Cycle] = []
    second: list[Cycle] = []
    removers = [watch_cycles(first.append), inner(second.append)]
    try:
        ring()
        gc.collect()
    finally:
        for remove in removers:
            remove()
    assert (len(first), len(second)) == (1, 1)


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, lambda tensor: [{"x": tensor}], lambda tensor: ([tensor], 1)])
def test_what_an_older_generation_holds_for_the_cycle_alone(wrap: Callable[[object], object]) -> None:
    found: list[Cycle] = []
    remove = watch_cycles(found.append)
    try:
        with CollectorPaused():
            shared, other = torch.ones(256), torch.ones(256)
            kept = [shared]
            old = wrap(torch.ones(512))
            gc.collect(0)  # as the collector does by itself between the tensor and the cycle
            one: Any = Node()
            one.me, one.old, one.others = one, old, (kept, other)
            del one, old
            gc.collect(0)
    finally:
        remove()
    assert [(cycle.bytes, len(cycle.tensors)) for cycle in found] == [(2048, 1)]


@pytest.mark.slow
def test_each_of_many_equal_cycles_is_found() -> None:
    found: list[Cycle] = []
    threshold = gc.get_threshold()
    remove = watch_cycles(found.append)
    try:
        gc.set_threshold(2, 3, 3)
        for _ in range(300):
            big = torch.ones(256)
            one: Any = Node()
            one.me, one.big = one, big
            del one, big
        gc.set_threshold(*threshold)
        gc.collect()
    finally:
        gc.set_threshold(*threshold)
        remove()
    assert (sum(cycle.count for cycle in found), sum(cycle.bytes for cycle in found)) == (300, 300 * 1024)


def test_a_watch_inside_another_counts_only_what_is_freed() -> None:
    told: list[tuple[str, int]] = []
    kept = torch.ones(1024)
    outer = watch_cycles(lambda cycle: told.append(("outer", cycle.bytes)))
    middle = watch_cycles(lambda cycle: told.append(("middle", cycle.bytes)))
    inner = watch_cycles(lambda cycle: told.append(("inner", cycle.bytes)))
    try:
        one: Any = Node()
        one.me, one.big, one.view = one, torch.ones(256), kept[:]
        dead = weakref.ref(one)
        del one
        gc.collect()
    finally:
        outer()
        middle()
        inner()
    assert (sorted(told), dead()) == ([("inner", 1024), ("middle", 1024), ("outer", 1024)], None)


class EndsWatch:
    """Ends a watch when it is finalized, in the middle of a collection."""

    remove: Callable[[], None]

    def __del__(self) -> None:
        self.remove()


@pytest.mark.slow
def test_a_watch_that_a_finalizer_ends_restores_the_collector() -> None:
    found: list[Cycle] = []
    one: Any = EndsWatch()
    one.me, one.big, one.remove = one, torch.ones(256), watch_cycles(found.append)
    dead = weakref.ref(one.big)
    del one
    gc.collect()
    assert (dead(), gc.get_debug(), gc.garbage) == (None, 0, [])
    ring()
    gc.collect()
    assert len(found) <= 1, "what the collection under way found may be told; nothing later"


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["own", "other"])
def test_a_callback_may_end_a_watch(ends: str) -> None:
    first: list[Cycle] = []
    second: list[Cycle] = []
    seen: list[str] = []

    def other(phase: str, info: object) -> None:
        seen.append(phase)

    def once(cycle: Cycle) -> None:
        second.append(cycle)
        removers[1 if ends == "own" else 0]()

    removers = [watch_cycles(first.append)]
    gc.callbacks.insert(0, other)
    removers.append(watch_cycles(once))
    try:
        with CollectorPaused():
            for _ in range(2):
                ring()
                gc.collect()
                assert (gc.get_debug(), gc.garbage) == (0, [])
            phases = [*seen]
    finally:
        for remove in removers:
            remove()
        gc.callbacks.remove(other)
    assert (len(first), len(second)) == ((2, 1) if ends == "own" else (1, 2))
    assert phases == ["start", "stop", "start", "stop"], "no callback is skipped or called twice"


@pytest.mark.slow
def test_a_collection_of_another_thread_is_waited_for() -> None:
    waiting, go_on = threading.Event(), threading.Event()

    class Slow:
        def __del__(self) -> None:
            waiting.set()
            go_on.wait(10)

    def collect() -> None:
        one: Any = Slow()
        one.me = one
        del one
        gc.collect()

    with CollectorPaused():
        thread = threading.Thread(target=collect)
        thread.start()
        waiting.wait(10)
        timer = threading.Timer(0.05, go_on.set)
        timer.start()
        ring()
        found = find_cycles()
        thread.join()
        timer.join()
    assert [cycle.bytes for cycle in found] == [1024]


@pytest.mark.slow
def test_a_watch_keeps_nothing_alive() -> None:
    gc.collect()
    before = sum(type(obj) is Node for obj in gc.get_objects())
    for _ in range(3):
        ring()
        assert len(find_cycles()) == 1
    assert sum(type(obj) is Node for obj in gc.get_objects()) == before


@pytest.mark.slow
def test_a_chain_of_100_000_objects_is_freed() -> None:
    with reference_cycles() as cycles:
        first: Any = Node()
        last = first
        for _ in range(100_000):
            last.after = Node()
            last = last.after
        last.after, first.big = first, torch.ones(256)
        dead = weakref.ref(first)
        del first, last
    assert (len(cycles), dead()) == (1, None)


@pytest.mark.slow
@pytest.mark.subprocess
def test_the_interpreter_exits_while_watched() -> None:
    code = """
import torch
from cudamem_testing import watch_cycles
watch_cycles(lambda cycle: print("found", cycle.chain))
class Node: pass
one = Node(); one.me = one; one.big = torch.ones(4)
import atexit
print("end")
"""
    root = Path(cudamem_testing.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
