"""Garbage before its finalizers run: all of it, nothing else, and without side effects."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing import unfinalized, watch_cycles
from cudamem_testing.cycles.watch import library
from cudamem_testing.guards import CollectorPaused


class Node:
    """Anything with attributes."""


class Finalized(Node):
    """Has a finalizer, which notes that it ran."""

    ran: Callable[[object], object]

    def __del__(self) -> None:
        self.ran(self)


@contextlib.contextmanager
def watched(look: Callable[[list[object]], object]) -> Iterator[None]:
    failed: list[BaseException] = []
    watch = unfinalized.GarbageWatch((Node,), lambda garbage, parts: look(garbage) and False, bool, failed.append)
    gc.collect(1)
    watch.start(library())
    try:
        with CollectorPaused():
            yield
    finally:
        watch.stop()
    assert failed == []


def generator(ran: list[str], held: object) -> Iterator[None]:
    try:
        yield
    finally:
        ran.append("generator")


def suspended(ran: list[str]) -> Any:
    one: Any = Node()
    one.steps = generator(ran, one)
    next(one.steps)
    return one


@given(
    classes=st.lists(st.sampled_from([Node, Finalized]), min_size=1, max_size=12),
    edges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=24),
    kept=st.sets(st.integers(0, 11)),
)
def test_exactly_the_garbage_is_shown(classes: list[type[Node]], edges: list[tuple[int, int]], kept: set[int]) -> None:
    shown: list[int] = []
    ran: list[int] = []

    def look(garbage: list[object]) -> None:
        assert ran == []
        shown.extend(obj.__dict__["number"] for obj in garbage if isinstance(obj, Node))

    with watched(look):
        nodes: list[Any] = [cls() for cls in classes]
        for number, one in enumerate(nodes):
            one.number, one.held, one.ran = number, [], lambda obj: ran.append(obj.number)
        for holder, held in edges:
            if holder < len(nodes) and held < len(nodes):
                nodes[holder].held.append(nodes[held])
        roots = [one for number, one in enumerate(nodes) if number in kept]
        alive = [weakref.ref(one) for one in nodes]
        del nodes, one
        ran.clear()  # of those that nothing held
        before = {number for number, reference in enumerate(alive) if reference() is not None}
        gc.collect(0)
        after = {number for number, reference in enumerate(alive) if reference() is not None}
    assert sorted(shown) == sorted(before - after)
    assert set(ran) == {number for number in before - after if classes[number] is Finalized}
    assert len(roots) == len([number for number in kept if number < len(classes)])


def test_finalizers_run_once_in_the_order_of_the_collector() -> None:
    def rounds() -> tuple[list[str], int]:
        ran: list[str] = []
        first: Any = Finalized()
        first.me, first.ran, first.steps = first, lambda _: ran.append("first"), suspended(ran)
        last: Any = Finalized()
        last.ran, last.other, first.other = lambda _: ran.append("last"), first, last
        del first, last
        return ran, gc.collect()

    with CollectorPaused():
        gc.collect()
        expected = rounds()
    shown: list[int] = []
    with watched(lambda garbage: shown.append(len(garbage))):
        assert rounds() == expected
    frames = 1 if sys.version_info < (3, 11) else 0  # a generator's is an object of its own, and goes with closing
    assert (expected[0], shown) == (["first", "generator", "last"], [expected[1] + frames])


@pytest.mark.slow
def test_numbers_of_the_collector_are_as_without_a_watch() -> None:
    def numbers() -> list[object]:
        found: list[object] = []
        for generation in (0, 1, 2):
            before = gc.get_stats()[generation]["collected"]
            one: Any = Node()
            one.me = one
            del one
            suspended([])
            found += [gc.collect(generation), gc.collect(generation), gc.get_stats()[generation]["collected"] - before]
        return found

    with CollectorPaused():
        gc.collect()
        expected = numbers()
    with watched(lambda garbage: None):
        assert numbers() == expected
    assert gc.collect() == 0
    assert not [obj for obj in gc.get_objects() if type(obj) is unfinalized._Mark]


def test_reading_attributes_changes_neither_counts_nor_objects() -> None:
    """Python 3.11 and 3.12 make a dictionary of an instance's attributes for who reads them."""
    found: list[int] = []
    saved: list[Any] = []

    def counts() -> list[int]:
        one: Any = Finalized()
        one.me, one.ran, one.big, one.after = one, saved.append, torch.ones(256), Node()
        one.after.up, one.after.none = one, None
        del one
        before = gc.collect(1)
        (kept,) = saved
        held = [type(obj).__name__ for obj in gc.get_referents(kept)]
        kept.after.new, kept.big = kept, kept.big + 1
        del kept.me
        saved.clear()
        del kept
        ring: Any = Node()
        ring.me, ring.big = ring, torch.ones(256)
        del ring
        return [before, gc.collect(), *map(len, held)]

    gc.collect()
    with CollectorPaused():
        expected = counts()
        remove = watch_cycles(lambda cycle: found.append(cycle.bytes))
        try:
            assert counts() == expected
        finally:
            remove()
    assert found == [1024, 1024]


@pytest.mark.parametrize(
    "watches", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_what_looking_made_does_not_keep_garbage(watches: int) -> None:
    """Attributes are read, which makes dictionaries on some versions; no finalizer breaks these cycles."""
    found: list[int] = []
    removers = [watch_cycles(lambda cycle: found.append(cycle.bytes)) for _ in range(watches)]
    try:
        while gc.collect():
            found.clear()
        with CollectorPaused():
            one: Any = Finalized()
            one.me, one.ran, one.big, one.after = one, id, torch.ones(256), Node()
            one.after.up = one
            del one
            around: Any = Node()
            around.me, around.inner = around, suspended([])
            around.inner.me, around.inner.big = around.inner, torch.ones(512)
            del around
            gc.collect()
        assert [obj for obj in gc.get_objects() if type(obj) in (Node, Finalized)] == []
    finally:
        for remove in removers:
            remove()
    assert sorted(found) == sorted([1024, 2048] * watches)


def test_what_a_finalizer_saves_stays_whole_and_is_not_reported() -> None:
    gc.collect()  # cycles of other tests are not told here
    saved: list[Any] = []
    found: list[int] = []
    remove = watch_cycles(lambda cycle: found.append(cycle.bytes))
    try:
        gc.collect()
        with CollectorPaused():
            one: Any = Finalized()
            one.me, one.ran, one.big, one.after = one, saved.append, torch.ones(256), Node()
            one.after.up = one
            del one
            gc.collect()
        assert found == []
        (kept,) = saved
        assert sorted(kept.__dict__) == ["after", "big", "me", "ran"]
        assert (kept.me is kept, kept.after.up is kept, kept.big.sum()) == (True, True, 256)
        del kept
        saved.clear()
        gc.collect()
        assert (found, [obj for obj in gc.get_objects() if type(obj) is Finalized]) == ([1024], [])
    finally:
        remove()


def test_where_the_list_cannot_be_read_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinalized, "_is_readable", lambda: False)
    monkeypatch.setattr(unfinalized, "_started", [])
    with pytest.raises(unfinalized.CollectorUnreadableError, match="keeps its list of objects in an unknown way"):
        watch_cycles(print)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_looking_raises_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(what.exc_value))
    monkeypatch.setattr("cudamem_testing.cycles.explain.explain", list.__getitem__)
    remove = watch_cycles(lambda cycle: None)
    try:
        while gc.collect():
            told.clear()
        with CollectorPaused():
            one: Any = suspended([])
            one.big = torch.ones(256)
            del one
            gc.collect()
        assert [type(error) for error in told] == [TypeError]
        assert [obj for obj in gc.get_objects() if type(obj) is Node] == []
    finally:
        remove()
    assert (gc.get_debug(), gc.garbage) == (0, [])
