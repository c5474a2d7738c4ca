"""Garbage before its finalizers run.

The collector finds what cannot be reached, clears the weak references to it and calls their callbacks; then it calls
finalizers, and only after that it shows what is left. A finalizer may let go what matters: that of a suspended
generator closes it, which drops its variables; a ``__del__`` may drop a buffer. The callbacks alone come before. So a
mark that is garbage itself is put beside the rest, and the callback of a weak reference to it looks around.

Nobody sees the mark: it is gone before the collector counts. The collector does not tell what it found, so its list is
read as CPython keeps it (``PyGC_Head``, the same from 3.8 on): each object lies between its neighbours, and while the
collector works a flag tells garbage. Whether the list is kept like that is tried first; where it is not (builds without
the global lock), nothing is found here.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any

from cudamem_testing import static

#: Bits of a link that are flags; the one that tells garbage while the collector works.
_FLAGS, _IS_GARBAGE = 3, 2
#: Number of the slot of a class in CPython's stable interface (``typeslots.h``).
_FINALIZER = 80
# Objects are passed by address: ctypes would ask an object itself for an attribute ``_as_parameter_``.
_slot_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(("PyType_GetSlot", ctypes.pythonapi))


class _Entry(ctypes.Structure):
    """An object in the collector's list: links to its neighbours, and from ``count`` on the object itself."""

    _fields_ = (
        ("after", ctypes.c_size_t),
        ("before", ctypes.c_size_t),
        ("count", ctypes.c_ssize_t),
        ("type", ctypes.c_size_t),
    )


_LINKS: int = _Entry.count.offset


class _Mark:
    """Refers to itself, so only the collector frees it."""

    __slots__ = ("__weakref__", "me")
    me: _Mark | None


class Unfinalized:
    """Shows the garbage of a collection before its finalizers run, where a class in it has one."""

    def __init__(self) -> None:
        self._readable: bool | None = None
        self._reference: weakref.ref[_Mark] | None = None
        self._made: list[object] = []
        self._shown: set[int] = set()

    def begin(self, look: Callable[[list[object]], None]) -> None:
        """A collection begins.

        ``look`` gets its garbage in a list, and must keep nothing of it: whatever is held afterwards stays alive.
        """
        if self._readable is None:
            self._readable = any(_is_readable() for _ in range(3))
        if self._readable:
            mark = _Mark()
            mark.me = mark
            self._reference = weakref.ref(mark, partial(self._found, look, id(mark)))

    def end(self, found: list[object]) -> list[object]:
        """The collection is over and found this; the rest of what nobody can reach, which it took for saved.

        On CPython 3.11 and 3.12 an instance has a dictionary only once somebody asks for it. One that looking made was
        no garbage of this collection, so all that it refers to seemed to be saved by a finalizer.
        """
        self._reference = None  # one that goes before the end is counted as garbage
        reached = _reached(self._made, self._shown)
        self._made.clear()
        self._shown.clear()
        return _held_by_each_other(reached, found) if reached else []

    def pass_on(self, other: Unfinalized) -> None:
        """Leave the rest of this collection to another one."""
        self._reference = None
        other._made += self._made
        other._shown |= self._shown
        self._made.clear()
        self._shown.clear()

    def _found(self, look: Callable[[list[object]], None], mark: int, _: weakref.ref[_Mark]) -> None:
        addresses, classes = _garbage_beside(mark)
        _object_at(mark).me = None
        if any(_slot_of(cls, _FINALIZER) for cls in classes):
            self._shown.update(addresses)
            garbage = [*map(_object_at, addresses)]
            young = _young_dictionaries()
            before, held = set(map(id, young)), set(map(id, static.referents(*garbage)))
            garbage += [one for one in young if id(one) in held]  # an earlier look made them: they are of it by now
            young.clear()
            try:
                look(garbage)
            finally:
                self._made += [found for found in _young_dictionaries() if id(found) not in before]


def _garbage_beside(mark: int) -> tuple[list[int], set[int]]:
    """Addresses of the objects in a mark's list, and of their classes; the mark's own are left out."""
    found: list[int] = []
    classes: set[int] = set()
    start = last = mark - _LINKS
    at = _Entry.from_address(start).after & ~_FLAGS
    while at != start:
        entry = _Entry.from_address(at)
        before = entry.before
        if before & ~_FLAGS != last:
            return [], set()
        if before & _IS_GARBAGE:  # else it is the head of the list, which is no object
            found.append(at + _LINKS)
            classes.add(entry.type)
        last, at = at, entry.after & ~_FLAGS
    return found, classes


def _reached(starts: Iterable[object], inside: Container[int]) -> list[object]:
    """The starts, and what is reached from them through objects of which the addresses are given."""
    found = [*starts]
    seen = set(map(id, found))
    for obj in found:
        for held in static.referents(obj):
            if id(held) in inside and id(held) not in seen:
                seen.add(id(held))
                found.append(held)
    return found


def _held_by_each_other(objects: list[object], garbage: list[object]) -> list[object]:
    """Those of the objects that nothing reaches but garbage and others of them; empties the list.

    As the collector finds it: what has more references than those is reachable, and what that reaches.
    """
    inside = dict(zip(map(id, objects), objects, strict=True))
    references: Counter[int] = Counter()
    for obj in (*objects, *garbage):
        references.update(filter(inside.__contains__, map(id, static.referents(obj))))
    del obj
    objects.clear()
    # One table is all that holds them here, and an object of its own tells how much that and the asking count for.
    inside[0] = object()
    counts = dict(zip(inside, map(sys.getrefcount, inside.values()), strict=True))
    ours = counts.pop(0)
    del inside[0]
    reachable = [inside[number] for number, count in counts.items() if count - ours > references[number]]
    for obj in _reached(reachable, inside):
        inside.pop(id(obj))
    return [*inside.values()]


def _young_dictionaries() -> list[object]:
    """Those made since the collection began, which has passed all others on to an older generation."""
    return [obj for obj in gc.get_objects(generation=0) if type(obj) is dict and obj]


def _object_at(address: int) -> Any:
    return ctypes.py_object.from_buffer(ctypes.c_size_t(address)).value


def _is_readable() -> bool:
    """Whether two objects made one after the other are neighbours in the list."""
    pair: tuple[list[int], list[int]] = [], []
    first, second = map(id, pair)
    one, two = _Entry.from_address(first - _LINKS), _Entry.from_address(second - _LINKS)
    links = one.after & ~_FLAGS, two.before & ~_FLAGS
    return links == (second - _LINKS, first - _LINKS) and {one.type, two.type} == {id(list)}
