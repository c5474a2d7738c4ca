"""The part of the heap that a search has visited: ids with edges in both directions, and queries on them.

All algorithms are breadth-first and iterative (E. F. Moore, "The shortest path through a maze", 1959).

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cudamem_testing import safe_access
from cudamem_testing.objects.roots import RootValue

#: Objects kept at each end of a long chain; those between are only counted.
CHAIN_END = 24
#: Objects that a label may need: a namespace's owner, the namespace, and what a name in it leads to.
_NAMED = 3
#: Returns the labels along a chain of ids, which order chains of equal length.
Words = Callable[[Sequence[int]], list[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Chain:
    """Ids along a chain of references: the first ``CHAIN_END``, how many are left out, and the last ones."""

    head: tuple[int, ...]
    left_out: int
    tail: tuple[int, ...]


@dataclass(slots=True)
class Reached:
    """Objects that roots reach: distance, rank of the root, previous object, and what holds the chain's start.

    ``head`` has the first ids of each object's chain, shared by all objects behind them, so that the chains of
    many targets down one long structure cost no more than their ends.
    """

    distance: dict[int, int] = field(default_factory=dict)
    rank: dict[int, int] = field(default_factory=dict)
    previous: dict[int, int] = field(default_factory=dict)
    start: dict[int, RootValue | None] = field(default_factory=dict)
    head: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def add(self, one: int, distance: int, rank: int, previous: int | None, start: RootValue | None) -> None:
        """Record the shortest chain to an object."""
        self.distance[one], self.rank[one] = distance, rank
        if previous is None:
            self.start[one] = start
            self.head[one] = (one,)
        else:
            self.previous[one] = previous
            before = self.head[previous]
            self.head[one] = (*before, one) if len(before) < CHAIN_END else before

    def chain(self, end: int) -> Chain:
        """The shortest chain to an object."""
        tail = [end]
        while len(tail) < CHAIN_END and tail[-1] in self.previous:
            tail.append(self.previous[tail[-1]])
        head, length = self.head[end], self._length(end)
        return _cut(head, tail[::-1], length)

    def end(self, one: int) -> list[int]:
        """The last ids of the chain to an object, as many as a label may need."""
        found = [one]
        while len(found) < _NAMED and found[0] in self.previous:
            found.insert(0, self.previous[found[0]])
        return found

    def is_before(self, previous: int, one: int, order: Mapping[int, int], words: Words) -> bool:
        """Whether the chain to an object over ``previous`` comes before its known one.

        The ``order`` of their starts decides, otherwise the labels from where they part. Chains that part farther
        back than ``CHAIN_END`` are equal.
        """
        known = self.previous.get(one)
        if known is None:
            return False
        left, right = [one, previous], [one, known]
        while left[-1] != right[-1]:
            ends = left[-1], right[-1]
            steps = [self.previous[end] for end in ends if end in self.previous]
            if not steps:
                return order.get(ends[0], 0) < order.get(ends[1], 0)
            if len(steps) < len(ends) or len(left) > CHAIN_END:
                return False
            left.append(steps[0])
            right.append(steps[1])
        before = self.end(left[-1])[:-1]
        return words([*before, *left[::-1]]) < words([*before, *right[::-1]])

    def _length(self, end: int) -> int:
        first = self.head[end][0]
        return self.distance[end] - self.distance[first] + 1


def cut(chain: Sequence[int]) -> Chain:
    """A chain, with its middle left out if it is long."""
    return _cut(chain[:CHAIN_END], chain[-CHAIN_END:], len(chain))


def _cut(head: Sequence[int], tail: Sequence[int], length: int) -> Chain:
    between = length - len(head) - len(tail)
    return Chain(tuple(head), max(between, 0), tuple(tail[max(-between, 0) :]))


class _Links:
    """The ids that each id is linked to, in order of insertion: most have one, stored without a container."""

    def __init__(self) -> None:
        self._links: dict[int, int | dict[int, None]] = {}

    def add(self, one: int, other: int) -> None:
        """Add a link; a second one changes nothing."""
        known = self._links.setdefault(one, other)
        if type(known) is dict:
            known[other] = None
        elif known != other:
            self._links[one] = {known: None, other: None}  # type: ignore[dict-item] # a number, as it is no dict

    def of(self, one: int) -> Collection[int]:
        """The ids that an id is linked to."""
        known = self._links.get(one)
        return () if known is None else known if type(known) is dict else (known,)  # type: ignore[return-value]


class Graph:
    """Objects by id, with their holders and what they hold. Keeps the objects alive."""

    def __init__(self) -> None:
        self.objects: dict[int, object] = {}
        self._holders = _Links()
        self._held = _Links()
        self._ordered: dict[int, list[int]] = {}
        self.looked_at = 0
        """Number of objects that :meth:`cycle_or_source` has examined."""

    def add(self, holder: int, referent: int) -> None:
        """Add an edge between two objects of the graph; a second one between them changes nothing."""
        self._holders.add(referent, holder)
        self._held.add(holder, referent)

    def holders_of(self, one: int) -> Collection[int]:
        """The known holders of an object."""
        return self._holders.of(one)

    def held_by(self, one: int) -> Collection[int]:
        """What an object is known to hold, in its own order, which is the same in every run."""
        held = self._held.of(one)
        if len(held) < 2:
            return held
        ordered = self._ordered.get(one)
        if ordered is None or len(ordered) != len(held):
            place = {number: place for place, number in _places(self.objects[one], held)}
            ordered = self._ordered[one] = sorted(held, key=lambda number: place.get(number, sys.maxsize))
        return ordered

    def ancestors(self, ids: Iterable[int]) -> set[int]:
        """The given objects and all objects that reach them."""
        found = set(ids)
        waiting = list(found)
        while waiting:
            for holder in self._holders.of(waiting.pop()):
                if holder not in found:
                    found.add(holder)
                    waiting.append(holder)
        return found

    def reach(
        self,
        starts: Sequence[tuple[int, int]],
        values: Sequence[tuple[int, int, RootValue]],
        words: Words | None = None,
    ) -> Reached:
        """Shortest chains from roots to all objects.

        ``starts`` are (rank, id) of objects that are roots, at distance 0; ``values`` are (rank, id, ...) of objects
        that a root outside the heap holds, at distance 1. Among chains of equal length the lowest rank wins, then
        the given order, then with ``words`` the lower labels, then the order in which objects hold others.
        """
        found = Reached()
        order = {one: place for place, (_, one) in enumerate(starts)}
        candidates: list[tuple[int, int, int | None, RootValue | None]] = [
            (rank, one, None, None) for rank, one in starts
        ]
        distance = 0
        while candidates or distance == 0:
            level: list[int] = []
            for rank, one, previous, value in sorted(candidates, key=lambda candidate: candidate[0]):
                if one not in found.distance:
                    level.append(one)
                elif (found.distance[one], found.rank[one]) != (distance, rank) or not (
                    words is not None and previous is not None and found.is_before(previous, one, order, words)
                ):
                    continue
                found.add(one, distance, rank, previous, value)
            candidates = [(found.rank[one], held, one, None) for one in level for held in self.held_by(one)]
            if distance == 0:
                candidates += [(rank, one, None, value) for rank, one, value in values]
            distance += 1
        return found

    def cycle_or_source(self, ids: Sequence[int]) -> list[int]:
        """For objects without a root: the shortest cycle through one of them, else the nearest chain from an object
        without holders, else the longest of the shortest chains.
        """
        cycles = [cycle for one in ids for cycle in self._cycle(one)]
        if cycles:
            return min(cycles, key=len)
        next_one: dict[int, int | None] = dict.fromkeys(ids)
        waiting = deque(next_one)
        last = waiting[-1] if waiting else None
        while waiting:
            one = last = waiting.popleft()
            holders = self._holders.of(one)
            if not holders and next_one[one] is not None:
                break
            for holder in holders:
                if holder not in next_one:
                    next_one[holder] = one
                    waiting.append(holder)
        self.looked_at += len(next_one)
        chain: list[int] = []
        while last is not None:
            chain.append(last)
            last = next_one[last]
        return chain

    def _cycle(self, one: int) -> list[list[int]]:
        """The shortest cycle through an object (as a list of at most one), first and last element the same."""
        previous: dict[int, int] = {}
        waiting = deque([one])
        while waiting:
            current = waiting.popleft()
            for held in self._held.of(current):
                if held == one:
                    chain = [one, current]
                    while chain[-1] != one:
                        chain.append(previous[chain[-1]])
                    self.looked_at += len(previous)
                    return [chain[::-1]]
                if held not in previous and held in self.objects:
                    previous[held] = current
                    waiting.append(held)
        self.looked_at += len(previous)
        return []


def _places(obj: object, wanted: Collection[int]) -> list[tuple[int, int]]:
    """Positions at which an object holds some others, by their ids; the collector reads sequences from the end."""
    found = [(place, number) for place, number in enumerate(map(id, safe_access.referents(obj))) if number in wanted]
    return [(-place, number) for place, number in found] if safe_access.is_one_of(obj, list, tuple) else found
