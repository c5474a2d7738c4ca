"""Who refers to a set of objects, asked many times about one moment.

A question about few objects is answered by one scan of the collector's lists in C (``gc.get_referrers``), which
compares each reference with each object asked about. Questions about many, and the later ones of a long chain, use an
index that is built once: the heap is cut into groups of ``GROUP``, and of each group the ids of all objects that it
refers to are kept (one C call a group). A question is then one set test a group, however many objects are asked about;
only groups that answer yes are looked at object by object. After many questions the groups are inverted into a
dictionary, so that a question costs nothing but its answer.

With torch and transformers imported (350,000 objects, 1.7 million references) a scan takes about 0.015 s, building the
index 0.15 s and a question to it 0.025 s.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gc
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from cudamem_testing import static
from cudamem_testing.objects.clock import Clock
from cudamem_testing.originals import Original

GROUP = 128
#: Objects asked about at once, and questions in all, for which scans are quicker than building an index.
NARROW = 32
_SCANS = 8
#: Questions to the index after which the dictionary pays.
_PATIENCE = 10


class Referrers(Protocol):
    """Answers who refers to what."""

    @property
    def complete(self) -> bool:
        """Whether every object was looked at."""
        ...

    def referrers(self, wanted: Mapping[int, object]) -> Iterator[tuple[object, int]]:
        """All pairs (holder, id of what it holds) for the given objects by id, in the heap's order."""
        ...

    def untracked(self, kinds: Collection[int]) -> Iterator[tuple[object, object]]:
        """All pairs (holder, referent) where the referent is of exactly one of these classes, given by their ids, whose
        instances the collector cannot see.
        """
        ...

    def release(self) -> None:
        """Let all objects go."""
        ...


class Heap:
    """All objects that the collector tracks at the moment it is made: scanned while that is quick, then indexed.

    Make it before anything else of a search, so that nothing of the search is part of it, and keep automatic
    collections off meanwhile: objects made since are recognized by being in the youngest generation. Holds the objects
    alive: release it with the search. ``complete`` is false where the clock ran out while the index was built.
    """

    def __init__(self, clock: Clock) -> None:
        self._young = {*map(id, Original.get_objects(generation=0))}
        self._objects = Original.get_objects()
        self._clock = clock
        self._collections = _collections()
        self._scans = _SCANS if _tells_young_objects() else 0
        self._index: ReferrerIndex | None = None
        self._judged: dict[int, bool] = {}

    @property
    def objects(self) -> list[object]:
        """The objects, in the collector's order."""
        return self._objects

    @property
    def complete(self) -> bool:
        """Whether every object was looked at."""
        return self._index is None or self._index.complete

    def referrers(self, wanted: Mapping[int, object]) -> Iterator[tuple[object, int]]:
        """See :class:`Referrers`."""
        if self._index is None and self._scans and len(wanted) <= NARROW and _collections() == self._collections:
            self._scans -= 1
            return self._scan(wanted)
        return self._indexed().referrers(wanted)

    def untracked(self, kinds: Collection[int]) -> Iterator[tuple[object, object]]:
        """See :class:`Referrers`."""
        return untracked(_groups(self._objects), kinds)

    def release(self) -> None:
        """See :class:`Referrers`."""
        self._objects.clear()
        if self._index is not None:
            self._index.release()

    def _indexed(self) -> ReferrerIndex:
        if self._index is None:
            made = {id(obj): obj for obj in Original.get_objects(generation=0) if _may_be_attributes(obj)}
            for number in self._young.intersection(made):
                del made[number]
            self._index = ReferrerIndex(self._objects, self._clock, made)
        return self._index

    def _scan(self, wanted: Mapping[int, object]) -> Iterator[tuple[object, int]]:
        holders = gc.get_referrers(*wanted.values())
        made = self._made_since()
        for holder in holders:
            if id(holder) not in made or self._is_new_dictionary(holder, made):
                yield from _pairs(holder, wanted.keys())

    def _made_since(self) -> set[int]:
        return {number for number in map(id, Original.get_objects(generation=0)) if number not in self._young}

    def _is_new_dictionary(self, holder: object, made: Collection[int]) -> bool:
        """Whether it holds the attributes of an object of the heap, which got its dictionary only since.

        An object keeps its attributes in itself until somebody asks for ``__dict__``, as the reading of roots does.
        """
        if not _may_be_attributes(holder):
            return False
        if id(holder) not in self._judged:
            owners = (one for one in gc.get_referrers(holder) if type(one) is not types.FrameType)
            self._judged[id(holder)] = any(id(one) not in made for one in owners)
        return self._judged[id(holder)]


class ReferrerIndex:
    """Some objects and which groups of them refer to which object.

    ``made`` are dictionaries by id that may since have taken over the attributes of some of the objects. Holds all of
    them alive. ``complete`` is false where the clock ran out while building.
    """

    def __init__(self, objects: list[object], clock: Clock, made: Mapping[int, object] | None = None) -> None:
        self._groups: list[list[object]] = []
        self._referents: list[tuple[int, ...]] = []
        self._inverted: dict[int, list[int]] | None = None
        self._questions = 0
        self.complete = True
        new: dict[int, object] = {}
        for group in _groups(objects):
            self._add(group)
            if made and not made.keys().isdisjoint(self._referents[-1]):
                new.update((one, made[one]) for one in self._referents[-1] if one in made)
            if clock.expired():
                self.complete = False
                break
        if new:
            self._add([*new.values()])

    def _add(self, group: list[object]) -> None:
        self._groups.append(group)
        # Strings, numbers and other untracked objects are never asked about: leaving them out halves the work.
        self._referents.append(tuple(map(id, filter(gc.is_tracked, static.referents(*group)))))

    def release(self) -> None:
        """See :class:`Referrers`."""
        for group in self._groups:
            group.clear()
        self._groups.clear()

    def referrers(self, wanted: Mapping[int, object]) -> Iterator[tuple[object, int]]:
        """See :class:`Referrers`."""
        for number in self._matching(wanted.keys()):
            missing = wanted.keys() & set(self._referents[number])
            for holder in self._groups[number]:
                for _, found in _pairs(holder, wanted.keys()):
                    missing.discard(found)
                    yield holder, found
            if missing:
                yield from self._in_new_dictionaries(number, missing)

    def _in_new_dictionaries(self, number: int, missing: set[int]) -> Iterator[tuple[object, int]]:
        """Pairs for attributes whose holder got its dictionary only since the index was built."""
        for holder in self._groups[number]:
            for referent in static.referents(holder):
                if type(referent) is dict:
                    for found in missing.intersection(map(id, referent.values())):
                        yield holder, found

    def untracked(self, kinds: Collection[int]) -> Iterator[tuple[object, object]]:
        """See :class:`Referrers`."""
        return untracked(self._groups, kinds)

    def _matching(self, wanted: Collection[int]) -> list[int]:
        self._questions += 1
        if self._questions > _PATIENCE and self._inverted is None:
            self._inverted = {}
            for number, referents in enumerate(self._referents):
                for referent in set(referents):
                    self._inverted.setdefault(referent, []).append(number)
        if self._inverted is not None:
            return sorted({number for one in wanted for number in self._inverted.get(one, ())})
        asked = frozenset(wanted)
        return [number for number, held in enumerate(self._referents) if not asked.isdisjoint(held)]


def _pairs(holder: object, wanted: Collection[int]) -> Iterator[tuple[object, int]]:
    """What an object holds of what is asked for, in the order in which it holds it."""
    referents = [*map(id, static.referents(holder))]
    found = wanted & set(referents)  # type: ignore[operator]
    if len(found) > 1:
        found = dict.fromkeys(one for one in referents if one in found)
    for one in found:
        yield holder, one


def _may_be_attributes(obj: object) -> bool:
    """Whether an object is a dictionary with names; tables of a search have numbers for keys."""
    return type(obj) is dict and type(next(iter(obj), None)) is str


def untracked(groups: Iterable[list[object]], kinds: Collection[int]) -> Iterator[tuple[object, object]]:
    """The answer of :meth:`Referrers.untracked` for objects in groups."""
    wanted = frozenset(kinds)
    for group in groups:
        if not wanted.isdisjoint(map(id, map(type, static.referents(*group)))):
            for holder in group:
                for referent in static.referents(holder):
                    if id(type(referent)) in wanted:
                        yield holder, referent


def _groups(objects: list[object]) -> Iterator[list[object]]:
    return (objects[start : start + GROUP] for start in range(0, len(objects), GROUP))


def _collections() -> int:
    """How many collections there were in this process: each one may move objects to an older generation."""
    return sum(generation["collections"] for generation in Original.get_stats())


def _tells_young_objects() -> bool:
    """Whether an object that was made just now is in the youngest generation (not where there are no generations)."""
    made: list[object] = [[]]
    return any(found is made for found in Original.get_objects(generation=0))
