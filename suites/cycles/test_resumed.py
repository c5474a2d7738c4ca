"""A watch that is paused and resumed: what happens between two tests, at their ends, or in the one before."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cudamem_testing import unfinalized
from cudamem_testing.cycles.watch import CycleWatch, library
from cudamem_testing.guards import CollectorPaused
from cudamem_testing.unfinalized import Counting


class Watched:
    """A watch that was counting once."""

    def __init__(self) -> None:
        self.watch = CycleWatch()
        self.watch.start()
        counting = self.watch.counting((0, 0))
        assert counting is not None
        counting.start(0, 0)
        self.counting: Counting = counting
        self.stopped()

    def resume(self) -> None:
        assert self.counting.resume(0, 0)

    def stopped(self) -> tuple[bool, int]:
        """Whether there was a collection, and how many were missed since this was asked."""
        before = self.watch.missed
        ran = not self.counting.pause() and self.watch.stop()
        self.watch.take()
        return ran, self.watch.missed - before


@pytest.fixture(params=[1, 0], ids=["read", "asked"])
def found(request: pytest.FixtureRequest) -> Iterator[int]:
    """Whether the numbers of the collector are found where it keeps them; they are read there, or asked from Python."""
    yield library().cudamem_collector_reads_counts(request.param)
    library().cudamem_collector_reads_counts(1)


@pytest.fixture
def watched(found: int) -> Iterator[Watched]:
    with CollectorPaused():
        made = Watched()
        yield made
        made.watch.stop()


def marks() -> list[Any]:
    """What the collector sees of them."""
    return [one for one in gc.get_objects() if type(one) is unfinalized._Mark]


def hold(watched: Watched) -> list[Any]:
    watched.resume()
    return marks()


def hold_in_a_collection(watched: Watched) -> list[Any]:
    found = hold(watched)
    gc.collect(0)
    watched.watch.stop()
    watched.resume()
    gc.collect(0)
    found.clear()
    return found


def freeze(watched: Watched) -> list[Any]:
    watched.resume()
    gc.freeze()
    return []


def freeze_and_thaw(watched: Watched) -> list[Any]:
    watched.resume()
    gc.freeze()
    gc.unfreeze()
    return []


def freeze_after(watched: Watched) -> list[Any]:
    watched.resume()
    watched.stopped()
    gc.freeze()
    return []


@pytest.fixture
def thaw() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.parametrize("before", [hold, hold_in_a_collection, freeze, freeze_and_thaw, freeze_after])
def test_the_next_test_is_watched_all_the_same(
    watched: Watched, before: Callable[[Watched], list[Any]], thaw: None
) -> None:
    held = before(watched)
    watched.stopped()
    watched.resume()
    gc.collect(0)
    assert watched.stopped() == (True, 0)
    del held


def test_a_mark_serves_many_tests_and_is_hidden_between(watched: Watched) -> None:
    watched.resume()
    first = weakref.ref(*marks())
    for _ in range(3):
        assert watched.stopped() == (False, 0)
        assert marks() == []
        gc.collect()
        assert first() is not None
        watched.resume()
        assert marks() == [first()]
    watched.stopped()
    watched.watch.stop()
    assert first() is None, "for good"


def test_a_collection_counts_where_it_is(watched: Watched) -> None:
    found = []
    for generation in (0, 1, 2):
        gc.collect(generation)
        watched.resume()
        found.append(watched.stopped())
        gc.collect(generation)
        watched.resume()
        gc.collect(generation)
        found.append(watched.stopped())
    assert found == [(False, 0), (True, 0)] * 3


@pytest.mark.parametrize("threshold", range(1, 9))
def test_no_collection_at_the_ends_of_a_test_is_missed(watched: Watched, threshold: int) -> None:
    """They begin at new objects: one there that holds the mark would keep it from the later ones."""
    keep: list[list[int]] = []
    before = gc.get_threshold()
    gc.set_threshold(threshold, 1000, 1000)
    gc.enable()
    try:
        for number in range(100):
            if not watched.counting.resume(0, 0):
                watched.counting.start(0, 0)
            keep += [[] for _ in range(number % 11)]
            if not watched.counting.pause():
                watched.watch.stop()
                watched.watch.start()
                keep += [[] for _ in range(number % 11)]
                watched.watch.stop()
    finally:
        gc.disable()
        gc.set_threshold(*before)
    assert watched.watch.missed == 0


def test_a_list_of_all_objects_hides_nothing_of_later_tests(watched: Watched) -> None:
    watched.resume()
    every = gc.get_objects()
    gc.collect(0)
    assert watched.stopped() == (True, 1)
    watched.resume()
    gc.collect(0)
    assert watched.stopped() == (True, 0)
    del every


def test_a_watch_between_begins_anew(watched: Watched) -> None:
    other = CycleWatch()
    watched.resume()
    other.start()
    assert not watched.counting.pause()
    assert not other.stop()
    assert not watched.counting.pause(), "its mark is another one"
    assert watched.stopped() == (False, 0)
    other.start()
    assert not watched.counting.resume(0, 0)
    other.stop()
    watched.resume()
    assert watched.stopped() == (False, 0)


def test_only_what_was_counted_last_is_resumed(watched: Watched) -> None:
    other = Watched()
    assert not watched.counting.resume(0, 0)
    assert not other.counting.resume(-1, 0)
    other.resume()
    other.watch.look_at_all()
    assert other.stopped() == (False, 0)
    assert not other.counting.resume(0, 0)


def test_a_test_may_end_and_begin_while_garbage_is_found(watched: Watched) -> None:
    """In a callback before that of the mark, which is garbage of this collection then, and no mark any more."""

    class Node:
        me: object

    def end(reference: object) -> None:
        ended.append(watched.counting.pause())
        ended.append(watched.counting.resume(0, 0))

    ended: list[bool] = []
    one = Node()
    one.me = one
    kept = weakref.ref(one, end)
    del one
    watched.resume()
    gc.collect(0)
    assert ended == [True, True]
    assert watched.stopped() == (True, 1), "it was over in the new test, and not seen by its mark"
    watched.resume()
    gc.collect(0)
    assert (watched.stopped(), marks(), kept()) == ((True, 0), [], None)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_goes_on(watched: Watched) -> None:
    watched.resume()
    child = os.fork()
    if child == 0:
        done = False
        try:
            gc.collect(0)
            found = [watched.stopped()]
            for collects in (False, True):
                watched.resume()
                if collects:
                    gc.collect(0)
                found.append(watched.stopped())
            done = found == [(True, 0), (False, 0), (True, 0)]
        finally:
            os._exit(not done)
    assert os.waitpid(child, 0)[1] == 0
    assert watched.stopped() == (False, 0)


def test_collections_are_counted_as_python_counts_them(watched: Watched, found: int) -> None:
    assert found == 1
    for generation in (0, 1, 2):
        gc.collect(generation)
        counts = [one["collections"] for one in gc.get_stats()]
        assert library().cudamem_collector_collections() >> 32 == sum(counts)
        older = [unfinalized.older_collections(), unfinalized._older_collections()]
        assert older == [sum(counts[1:])] * 2
