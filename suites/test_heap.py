"""The small heap that runs inside a test meet."""

from __future__ import annotations

import gc
import weakref

from cudamem_testing import guards
from suites.heap import set_aside


class Node:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


def listed(node: Node) -> bool:
    return any(found is node for found in gc.get_objects())


def test_older_objects_are_neither_listed_nor_freed() -> None:
    older, garbage = Node(), weakref.ref(Node())
    gc.freeze()
    gc.unfreeze()  # the garbage is old now
    with set_aside():
        newer, own_garbage = Node(), weakref.ref(Node())
        assert (listed(older), listed(newer)) == (False, True)
        assert guards.collect_garbage()
        assert (garbage() is None, own_garbage()) == (False, None)
        left = weakref.ref(Node())
    assert (listed(older), listed(newer)) == (True, True)
    assert left() is None
    assert guards.collect_garbage()
    assert garbage() is None


def test_the_product_sees_only_what_is_frozen_inside() -> None:
    older = Node()
    with set_aside():
        newer = Node()
        with guards.thawed():
            assert (listed(older), listed(newer)) == (False, True)
        gc.freeze()
        assert (listed(older), listed(newer)) == (False, False)
        with guards.thawed():
            assert (listed(older), listed(newer)) == (True, True)
        assert (listed(older), listed(newer)) == (False, False)
    assert (listed(older), listed(newer)) == (True, True)


def test_a_second_one_inside_changes_nothing() -> None:
    older = Node()
    with set_aside():
        with set_aside():
            assert not listed(older)
        assert not listed(older)
    assert listed(older)
    assert guards.gc is gc


def test_young_garbage_is_freed_before() -> None:
    garbage = weakref.ref(Node())
    with set_aside():
        assert garbage() is None
