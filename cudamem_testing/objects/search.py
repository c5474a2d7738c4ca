"""Finds what holds memory: the shortest chain of references from a root to each of many targets.

One breadth-first search runs backwards from all targets at once, over the union of what the garbage collector sees
(``index``) and what only C++ holds (``carriers``). It stops at roots and never walks through them: the holders of
a module do not matter. After each level a forward search from the roots found so far, over the few objects visited,
gives the distance of each target; a distance up to the number of walked levels is final. Branches that lead only to
targets with a final distance are dropped.

Of an object with very many holders only the first ones, and all roots, are visited: a chain that is found is true, and
as short as any over those; if none is found, the search has no answer.

Chains of equal length are ordered by: the project's modules, classes and caches; registries and threads; frames;
library modules; then the roots' names; then the labels along the chains, without keys; then the order in
which objects hold others. So every run names the same chain.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from cudamem_testing import safe_access, torch_api
from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.edges import View
from cudamem_testing.model.references import Doubt, Path, Reach, RootKind, Unsure
from cudamem_testing.objects import arrays, results
from cudamem_testing.objects.carriers import Carriers
from cudamem_testing.objects.clock import Clock
from cudamem_testing.objects.graph import Graph, Reached, Words, cut
from cudamem_testing.objects.index import NARROW, Heap, ReferrerIndex, Referrers
from cudamem_testing.objects.names import name_of, type_word, view_of
from cudamem_testing.objects.paths import PathWriter
from cudamem_testing.objects.roots import Ignore, Root, Roots
from cudamem_testing.objects.untracked import array_pairs, untracked
from cudamem_testing.torch_api import nodes
from cudamem_testing.wording.leaks import doubt_text

NOTHING_IGNORED = Ignore()
#: Most holders of one object that are visited.
MOST_HOLDERS = 2_000
_CHECKED_EVERY = 1_000
#: Most objects examined for the chains of targets that no root reaches.
_MOST_LOOKED_AT = 100_000
#: Most objects that a search visits, so that it uses little memory.
BUDGET_OBJECTS = 30_000
Target = TypeVar("Target")
#: Some objects of the heap, and the roots of the moment.
Part = tuple[list[object], Roots]


@dataclass(frozen=True, slots=True)
class HolderResult:
    """The holder of one target.

    ``path`` is the chain from a root; for ``UNREACHABLE`` the chain from an object that nothing holds, or around a
    cycle; else ``None``. ``objects`` are names of the target's Python tensors, at most three;
    ``view`` is the first of them if they are all views of a part of the storage.
    ``complete`` is false if the search stopped at its limit; ``doubt`` says so, or what else is unknown.
    """

    reach: Reach
    path: Path | None
    objects: tuple[str, ...] = ()
    complete: bool = True
    doubt: Doubt | None = None
    view: View | None = None

    def __str__(self) -> str:
        text = self.reach.value if self.path is None else f"{self.reach.value}: {self.path.text}"
        return text if self.doubt is None else f"{text} ({doubt_text(self.doubt)})"


def find_holders(
    addresses: Iterable[int],
    *,
    budget_seconds: float | None = 5.0,
    budget_objects: int = BUDGET_OBJECTS,
    ignore: Ignore = NOTHING_IGNORED,
    learn: Callable[[Search], object] | None = None,
    reached_only: bool = False,
) -> dict[int, HolderResult]:
    """Find the holders of storages, given by the addresses of their data.

    Args:
        addresses: data pointers of storages, as an allocator's record has them.
        budget_seconds: processor time after which the search stops; results then have ``complete=False``.
        budget_objects: number of visited objects, besides its targets, after which the search stops.
        ignore: objects that are never named as holders.
        learn: called with the search before it is released.
        reached_only: leave out storages that no root reaches through what the collector sees, unless the search stopped
            at a limit: describing garbage takes longer than collecting it.
    """
    wanted = tuple(dict.fromkeys(addresses))
    with Search(wanted, budget_seconds, budget_objects, _without(ignore, addresses)) as search:
        found = search.run(search.carriers.targets(wanted), reached_only=reached_only)
        if learn is not None:
            learn(search)
        return found


def find_object_holders(
    objects: Sequence[object],
    *,
    budget_seconds: float | None = 5.0,
    budget_objects: int = BUDGET_OBJECTS,
    ignore: Ignore = NOTHING_IGNORED,
) -> list[HolderResult]:
    """Find the holders of objects; results in their order. The sequence itself does not count as a holder."""
    with Search((), budget_seconds, budget_objects, _without(ignore, objects)) as search:
        found = search.run({position: [obj] for position, obj in enumerate(objects)})
    return [found[position] for position in range(len(objects))]


def _without(ignore: Ignore, argument: object) -> Ignore:
    return Ignore(ignore.ids | {id(argument)}, ignore.packages)


class Search(ExitStack):
    """One search over the heap at one moment; a context manager that keeps the objects of that moment alive.

    With ``part``, the search sees a part of the heap only: its results are true for the whole heap if everything in
    ``walked`` has no other holders than the known ones.
    """

    def __init__(
        self,
        addresses: Sequence[int],
        budget_seconds: float | None,
        budget_objects: int,
        ignore: Ignore,
        part: Part | None = None,
    ) -> None:
        super().__init__()
        self._clock = Clock(budget_seconds)
        self._budget_seconds, self._budget_objects = budget_seconds, budget_objects
        if part is None:
            self.enter_context(CollectorPaused())
            # First, so that nothing which the search creates is part of it.
            heap = Heap(self._clock)
            self._referrers: Referrers = heap
            objects, self._roots = heap.objects, Roots(ignore)
        else:
            objects, self._roots = part
            self._referrers = ReferrerIndex(objects, self._clock)
        self._skipped = ignore.ids | {id(self), id(self.__dict__)}
        self.carriers = Carriers(objects, addresses, self._clock)
        self.graph = Graph()
        self.walked: set[int] = set()
        """Objects whose holders were queried, by id."""
        self.root_at: dict[int, Root] = {}
        self._put_off: set[int] = set()
        """Visited, but not walked back from: they were not known to hold anything still searched for."""
        self._target_count = 0
        self._left_out: set[int] = set()
        """Objects with left-out holders, by id."""
        self._stopped: str | None = None

    def __exit__(self, *error: Any) -> None:
        """Release everything: the list of the heap holds the search too, and nothing may wait for a collection."""
        for part in (self._roots, self.carriers, self._referrers):
            part.release()
        super().__exit__(*error)
        self.__dict__.clear()

    @property
    def visited_count(self) -> int:
        """The number of objects that the search has visited."""
        return len(self.graph.objects)

    def run(self, targets: dict[Target, list[object]], *, reached_only: bool = False) -> dict[Target, HolderResult]:
        """Results for the targets, each given as the objects that keep it; see ``find_holders``."""
        frontier = [id(obj) for objects in targets.values() for obj in objects if self._meet(obj)]
        self._target_count = self.visited_count
        pending = {key: objects for key, objects in targets.items() if objects}
        reached = self._forward(ignored=False)
        level, last_resort = 0, False
        while True:
            # With nothing left to walk back from, the graph is complete and every distance in it is final.
            exact = level if frontier else sys.maxsize
            final = [key for key, objects in pending.items() if _distance(reached, objects) <= exact]
            for key in final:
                del pending[key]
            if not pending:
                break
            if final:
                wanted = self.graph.ancestors([id(obj) for objects in pending.values() for obj in objects])
                self._put_off.update(one for one in frontier if one not in wanted)
                frontier = [one for one in frontier if one in wanted]
            if not frontier and not last_resort and not reached_only:
                last_resort = True
                frontier = self._beyond_the_collector()
            if not frontier:
                break
            if self._is_over_budget():
                break
            frontier, joined = self._step(frontier)
            level += 1
            if joined or not frontier:
                reached = self._forward(ignored=False)
        if not (self.carriers.complete and self._referrers.complete):
            self._is_over_budget()
        if reached_only and self._stopped is None:
            targets = self.reached(targets)
        unsettled = {key for key, objects in targets.items() if key in pending or not objects}
        return self._results(targets, unsettled if self._stopped else set())

    def reached(self, targets: dict[Target, list[object]]) -> dict[Target, list[object]]:
        """The targets that a root reaches as far as the search has walked, the harness' roots among them."""
        known = self._forward(ignored=False).distance.keys() | self._forward(ignored=True).distance.keys()
        return {key: objects for key, objects in targets.items() if any(id(obj) in known for obj in objects)}

    def explore(self, ids: Iterable[int], levels: int) -> None:
        """Continue from visited objects that were not walked back from, up to roots that hold them too."""
        frontier = [one for one in ids if one not in self.walked and one not in self.root_at]
        for _ in range(levels):
            if not 0 < len(frontier) <= NARROW or self._clock.expired():
                break
            frontier, _ = self._step(frontier)

    def _meet(self, obj: object) -> bool:
        """Add an object to the graph; returns whether it is new and must be walked back from."""
        if id(obj) in self.graph.objects:
            return False
        self.graph.objects[id(obj)] = obj
        root = self._roots.anchor(obj)
        if root is not None:
            self.root_at[id(obj)] = root
        return root is None

    def _step(self, frontier: list[int]) -> tuple[list[int], bool]:
        """One level back: the next frontier, and whether a root or a known object was met."""
        found: list[int] = []
        joined = any(one in self._roots.values for one in frontier)
        self.walked.update(frontier)
        pairs = self._holders({one: self.graph.objects[one] for one in frontier if one not in self.carriers.fresh})
        pairs += [(holder, one) for one in frontier for holder in self.carriers.holders.get(one, {}).values()]
        for holder, referent in pairs:
            number = id(holder)
            if number in self._skipped or number in self._roots.running_frames:
                continue
            if number in self._put_off:  # it does hold something that is still searched for
                self._put_off.remove(number)
                found.append(number)
                joined = True
            elif self._meet(holder):
                found.append(number)
            else:
                joined = True
            joined = joined or number in self._roots.values
            self.graph.add(number, referent)
        return found, joined

    def _holders(self, held: Mapping[int, object]) -> list[tuple[object, int]]:
        """Pairs (holder, id of what it holds): at most ``MOST_HOLDERS`` for one object, besides possible roots."""
        pairs: list[tuple[object, int]] = []
        met: Counter[int] = Counter()
        for number, pair in enumerate(self._referrers.referrers(held) if held else ()):
            holder, one = pair
            met[one] += 1
            if met[one] <= MOST_HOLDERS or self._roots.is_root(holder):
                pairs.append(pair)
            else:
                self._left_out.add(one)
            if number % _CHECKED_EVERY == 0 and self._is_over_budget(len(pairs)):
                break
        return pairs

    def _beyond_the_collector(self) -> list[int]:
        """Holders that the collector cannot see; a visited object that one of them holds is walked back from again."""
        values = self._roots.local_values()
        kinds = {id(cls) for cls in (arrays.array_class(), *results.result_classes()) if cls is not None}
        extra = [*self._referrers.untracked(kinds), *untracked([values], kinds)]
        extra += array_pairs([*values, *(referent for _, referent in extra)])
        extra += results.edges([*values, *(referent for _, referent in extra)])
        extra += self.carriers.metadata_edges()
        for holder, referent in extra:
            self.carriers.hold(holder, referent)
        return list(dict.fromkeys(id(referent) for _, referent in extra if id(referent) in self.graph.objects))

    def _forward(self, *, ignored: bool, words: Words | None = None) -> Reached:
        """Distances from the roots met so far, and the holder through which each object was reached."""
        starts = [(root, one) for one, root in self.root_at.items() if root.ignored is ignored]
        starts.sort(key=lambda start: start[0].text)  # the same in every run
        values = [
            (value, one)
            for one in self.graph.objects
            for value in self._roots.values.get(one, ())
            if value.root.ignored is ignored
        ]
        values.sort(key=lambda value: (value[0].root.text, value[0].reference.text))
        return self.graph.reach(
            [(root.rank, one) for root, one in starts], [(value.root.rank, one, value) for value, one in values], words
        )

    def _is_over_budget(self, more: int = 0) -> bool:
        if self._clock.expired():
            self._stopped = f"{self._budget_seconds or 0:g} s"
        elif self.visited_count + more > self._budget_objects + self._target_count:
            self._stopped = f"{self._budget_objects:,} objects"
        return self._stopped is not None

    def _results(
        self, targets: dict[Target, list[object]], unsettled: Collection[Target]
    ) -> dict[Target, HolderResult]:
        writer = PathWriter(self.graph.objects)
        words = partial(self._words, writer)
        reached = self._forward(ignored=False, words=words)
        by_harness: Reached | None = None
        results: dict[Target, HolderResult] = {}
        for key, objects in targets.items():
            own = self.own(objects)[:3]
            names = tuple(dict.fromkeys(map(name_of, own)))
            reach, path = Reach.REACHABLE, self._path(writer, reached, objects)
            if path is None:
                by_harness = by_harness or self._forward(ignored=True, words=words)
                reach, path = Reach.HARNESS, self._path(writer, by_harness, objects)
            if path is None and (key in unsettled or self._left_out):
                reach = Reach.UNKNOWN
            elif path is None:
                reach, path = self._island(writer, objects)
            complete = key not in unsettled and reach is not Reach.UNKNOWN
            results[key] = HolderResult(reach, path, names, complete, self._doubt(reach, complete), view_of(own))
        return results

    def _words(self, writer: PathWriter, chain: Sequence[int]) -> list[tuple[str, str]]:
        """The labels along some objects of the graph; a root is its holder, as in a path."""
        objects = [self.graph.objects[one] for one in chain]
        first = self.root_at.get(chain[0])
        return writer.words(objects if first is None or first.holder is None else [first.holder, *objects[1:]])

    def own(self, objects: list[object]) -> list[object]:
        """The objects that Python itself holds: not those held only by another object, such as the base of a view, and
        not the Python object of a tensor's storage that exists because it was read once.
        """
        held = [obj for obj in objects if not self._is_leftover(obj)] or objects
        return [obj for obj in held if not self._only_in_another(obj)] or held

    def _is_leftover(self, obj: object) -> bool:
        return safe_access.is_a(obj, torch.UntypedStorage) and not self.graph.holders_of(id(obj))

    def _only_in_another(self, obj: object) -> bool:
        holders = set(self.graph.holders_of(id(obj)))
        return bool(holders) and holders <= self.carriers.holders.get(id(obj), {}).keys()

    def _doubt(self, reach: Reach, complete: bool) -> Doubt | None:
        """What the result leaves unknown."""
        if not complete:
            budget = self._stopped
            return Doubt(Unsure.CROWDED, f"{MOST_HOLDERS:,}") if budget is None else Doubt(Unsure.BUDGET, budget)
        if reach in (Reach.NOT_HELD, Reach.UNREACHABLE) and self.carriers.node_count and not nodes.shows_saved():
            return Doubt(Unsure.HIDDEN_GRAPH, f"torch {torch_api.version()}")
        return None

    def _path(self, writer: PathWriter, reached: Reached, objects: list[object]) -> Path | None:
        there = [one for one in map(id, objects) if one in reached.distance]
        if not there:
            return None
        places = {one: (reached.distance[one], reached.rank[one]) for one in there}
        least = min(places.values())
        equal = [one for one in there if places[one] == least]
        if len(equal) > 1:  # tensors that one object holds by one label are alike
            ends = {
                (reached.previous.get(one, one), *self._words(writer, reached.end(one))): one for one in equal[::-1]
            }
            equal = [*ends.values()]
        paths = [self._path_to(writer, reached, one) for one in equal]
        return min(paths, key=lambda path: path.stable) if len(paths) > 1 else paths[0]

    def _path_to(self, writer: PathWriter, reached: Reached, one: int) -> Path:
        chain = reached.chain(one)
        start = reached.start[chain.head[0]]
        if start is not None:
            return writer.write(start.root, chain, first=start.reference)
        root = self.root_at[chain.head[0]]
        return writer.write(root, chain, holder=root.holder)

    def _island(self, writer: PathWriter, objects: list[object]) -> tuple[Reach, Path | None]:
        """What is known about a target that no root reaches; with very many objects only that something holds it."""
        if self.graph.looked_at > _MOST_LOOKED_AT:
            is_held = any(self.graph.holders_of(id(obj)) for obj in objects)
            return (Reach.UNREACHABLE if is_held else Reach.NOT_HELD), None
        chain = self.graph.cycle_or_source([id(obj) for obj in objects])
        if len(chain) < 2:
            return Reach.NOT_HELD, None
        word = type_word(self.graph.objects[chain[0]])
        return Reach.UNREACHABLE, writer.write(Root(RootKind.UNHELD, word, 0, False, None, word), cut(chain))


def _distance(reached: Reached, objects: list[object]) -> float:
    return min((reached.distance.get(id(obj), float("inf")) for obj in objects), default=float("inf"))
