"""Finds the cycles in the garbage of one collection that keep memory.

This runs inside the collection, so it does little: nothing for garbage that keeps too little memory to count, and each
kind of cycle is read once (``Memory``). Source is looked up later (``source``).

Its passes are linear in the garbage: tensors, and what they hold through C++; references among objects; objects that
lead to a tensor; their strongly connected components (Tarjan); for each source component the shortest cycle through or
towards its largest tensor. Labels are read only for what is shown. Nothing here may keep the garbage alive. What a
cycle really kept is known once the garbage is freed, so a ``Draft`` holds weak references to storages until then.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import types
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cudamem_testing import safe_access
from cudamem_testing.cycles import graph
from cudamem_testing.cycles.memory import Chain, Memory
from cudamem_testing.cycles.origins import harness_of
from cudamem_testing.cycles.results import NAMED, Cycle, KeptTensor, merged
from cudamem_testing.cycles.words import INNER, Hop, hops, is_plain, name_along, pieces, rank, shape_of, signature
from cudamem_testing.model.stacks import Locator, Stack
from cudamem_testing.objects.tensors import Storage, carried_by, is_tensor
from cudamem_testing.objects.torch_references import node_edges, tensor_edges
from cudamem_testing.torch_api.nodes import is_node_type
from cudamem_testing.torch_api.tensors import StoredMemory, TensorBase
from cudamem_testing.unfinalized import Part

if TYPE_CHECKING:
    from cudamem_testing.show.diagrams import Diagram

#: Objects outside the garbage, held by it through C++, that are looked at.
MOST_BEYOND = 20_000
#: Objects at the start and at the end of a long cycle that are put into words.
ENDS = 24
#: Cycles of the same classes in one collection that are read; what others keep is counted with those.
MOST_ALIKE = 8
NO_KEEPER = -1
UNSEEN = "(through C++, where it cannot be followed)"

Allocated = Callable[[str, int], "Stack | None"]


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for.

    ``device`` says which devices count. ``allocated`` returns the stack that allocated the block at an address of a
    device; with ``known_only``, blocks without one do not count. ``counts`` decides some of this faster. ``enough``
    says whether so many bytes on each device are worth examining. ``kind`` looks for instances of a class instead of
    tensors. ``memory`` is kept between questions.
    """

    locator: Locator
    device: Callable[[str], bool] = lambda device: True
    allocated: Allocated = lambda device, address: None
    counts: Callable[[str, int], bool] = lambda device, address: True
    known_only: bool = False
    kind: type | None = None
    enough: Callable[[Mapping[str, int]], bool] = lambda kept: True
    memory: Memory | None = None
    draws: bool = True


class Draft:
    """Cycles of garbage that still exists, with weak references to what they keep."""

    def __init__(self, found: list[tuple[Cycle, list[StoredMemory]]], needs_tensors: bool) -> None:
        self._found = found
        self._needs_tensors = needs_tensors

    def __len__(self) -> int:
        return len(self._found)

    def settled(self, *, freed: bool = True) -> list[Cycle]:
        """The cycles with what was freed together with the garbage; without ``freed``, with everything they referred
        to.
        """
        cycles = []
        for cycle, memory in self._found:
            kept = tuple(
                tensor for tensor, weak in zip(cycle.tensors, memory, strict=True) if weak.release() or not freed
            )
            if kept or not self._needs_tensors:
                cycles.append(replace(cycle, tensors=kept))
        return merged(cycles)


def explain(garbage: Sequence[object], question: Question, parts: Sequence[Part] = ()) -> Draft:
    """The cycles in garbage that keep what is asked for; none if that is not enough.

    ``parts`` are what the garbage consists of, one after the other; the question's memory keeps where their cycles are.
    """
    reading = _Explanation(garbage, question)
    draft = Draft([*reading.cycles()] if reading.is_enough() else [], question.kind is None)
    if parts and question.memory is not None:
        question.memory.parts.update(reading.parts(parts))
    return draft


class _Explanation:
    """The working state of one explanation. It holds the garbage and must not outlive it."""

    def __init__(self, garbage: Sequence[object], question: Question) -> None:
        self._question = question
        self._known = question.memory or Memory(question.locator)
        self._objects = [*garbage]
        self._places = dict(zip(map(id, self._objects), range(len(self._objects)), strict=True))
        self._targets = self._instances(question.kind or TensorBase)
        self._beyond = [*self._follow_cpp()] if self._targets else []
        self._edges: list[list[int]] = []
        self._memory: dict[int, list[tuple[KeptTensor, StoredMemory]]] = {}
        self._alike: Counter[tuple[object, ...]] = Counter()
        self._first: dict[tuple[object, ...], Cycle] = {}
        self._chains: list[Chain] = []

    def parts(self, parts: Sequence[Part]) -> Iterator[tuple[int, tuple[Chain, ...]]]:
        """The cycles of each part by its fingerprint; without parts in which C++ is part of a cycle."""
        end = 0
        for fingerprint, size in parts:
            start, end = end, end + size
            inside = range(start, end)
            chains = [chain for chain in self._chains if any(place in inside for place in chain.places)]
            if chains and fingerprint and all(place in inside for chain in chains for place in chain.places):
                yield (
                    fingerprint,
                    tuple(Chain(tuple(place - start for place in places), written) for places, written in chains),
                )

    def is_enough(self) -> bool:
        """Read the storages; returns whether they are worth examining."""
        if not self._targets:
            return False
        if self._question.kind is not None:
            self._read_memory(self._storages())
            return True
        counts = self._question.counts
        storages = [one for one in self._storages() if counts(one[1].device, one[1].address)]
        if not storages or not self._question.enough(_totals(storage for _, storage, _ in storages)):
            return False
        self._read_memory(storages)
        return bool(self._memory)

    def _instances(self, *wanted: type) -> list[int]:
        """Places of instances of some classes; each class among the objects is judged once, by its id."""
        types_ = list(map(type, self._objects))
        ids = list(map(id, types_))
        classes = dict(zip(ids, types_, strict=True))
        chosen = {
            number
            for number, cls in classes.items()
            if any(safe_access.derives(cls, base) for base in wanted) or (len(wanted) > 1 and is_node_type(cls))
        }
        return [place for place, number in enumerate(ids) if number in chosen]

    def _follow_cpp(self) -> Iterator[tuple[int, int]]:
        """What tensors and autograd nodes hold through C++; objects beyond the garbage are added to the objects."""
        places = self._places
        limit = len(self._objects) + MOST_BEYOND
        waiting = deque(self._instances(TensorBase, _Node))
        while waiting:
            place = waiting.popleft()
            obj = self._objects[place]
            found = tensor_edges(obj) if is_tensor(obj) else node_edges(obj, metadata=False)
            for _, _, referent in found:
                if referent is None:
                    continue
                target = places.get(id(referent))
                if target is None:
                    is_followed = is_tensor(referent) or is_node_type(type(referent))
                    if not is_followed or len(self._objects) >= limit:
                        continue
                    target = places[id(referent)] = len(self._objects)
                    self._objects.append(referent)
                    waiting.append(target)
                    if is_tensor(referent) and self._question.kind is None:
                        self._targets.append(target)
                yield place, target

    def cycles(self) -> Iterator[tuple[Cycle, list[StoredMemory]]]:
        """Every source component that keeps something, put into words."""
        targets = self._targets if self._question.kind is not None else [*self._memory]
        self._edges = graph.referents(self._objects, self._places, self._beyond)
        holders = graph.reversed_edges(self._edges)
        relevant = graph.ancestors(holders, targets)
        found = graph.components(relevant, self._edges)
        keeper = graph.keepers(found, self._edges)
        groups: dict[int, list[int]] = {}
        for target in targets:
            groups.setdefault(keeper.get(target, NO_KEEPER), []).append(target)
        cyclic = Counter(keeper[one[0]] for one in found if graph.is_cyclic(one, self._edges))
        unseen = groups.pop(NO_KEEPER, None)
        regions: dict[int, set[int]] = {place: set() for place in groups}
        for one, place in keeper.items():
            if place in regions:
                regions[place].add(one)
        for place, members in sorted(groups.items(), key=lambda pair: -self._bytes(pair[1])):
            members.sort(key=lambda one: -self._bytes([one]))
            inside = regions.pop(place)
            yield self._cycle(found[place], members, inside, holders, cyclic[place] - 1, len(inside))
        if unseen is not None:
            kept = [pair for one in unseen for pair in self._memory.get(one, ())]
            yield Cycle((UNSEEN,), tuple(tensor for tensor, _ in kept), UNSEEN), [memory for _, memory in kept]

    def _storages(self) -> Iterator[tuple[int, Storage, object]]:
        """The storages of all tensors on the devices that count, each once, by its first tensor."""
        seen: set[int] = set()
        for place in self._targets if self._question.kind is None else self._instances(TensorBase):
            for storage, carrier in carried_by(self._objects[place]):
                if storage.identity not in seen and self._question.device(storage.device):
                    seen.add(storage.identity)
                    yield place, storage, carrier

    def _read_memory(self, storages: Iterable[tuple[int, Storage, object]]) -> None:
        for place, storage, carrier in storages:
            stack = self._question.allocated(storage.device, storage.address)
            if stack is None and self._question.known_only:
                continue
            kept = KeptTensor("", "", storage.nbytes, storage.device, storage.address, stack)
            self._memory.setdefault(place, []).append((kept, StoredMemory(carrier)))

    def _bytes(self, members: Sequence[int]) -> int:
        return sum(tensor.bytes for one in members for tensor, _ in self._memory.get(one, ()))

    def _cycle(
        self,
        component: Sequence[int],
        members: list[int],
        inside: Container[int],
        holders: graph.Edges,
        hanging: int,
        size: int,
    ) -> tuple[Cycle, list[StoredMemory]]:
        within = set(component)
        start = graph.nearest(members[0], holders, inside, _Outer(self._objects, within))
        if start is None:  # only dictionaries and tuples
            start = component[0]
        chain = self._turned(graph.shortest_cycle(start, self._edges, within))
        objects = [self._objects[one] for one in chain]
        pairs = [pair for one in members for pair in self._memory.get(one, ())]
        largest = [tensor for tensor, _ in pairs[:NAMED]]
        kind = (len(pairs), *map(_raw_key, objects), *map(_place_of, largest))
        self._alike[kind] += 1
        lines_known = bool(largest) and all(tensor.stack is not None for tensor in largest)
        first = self._first.get(kind) if self._alike[kind] > MOST_ALIKE else None
        closed = _shortened([*chain, chain[0]])
        steps = [] if first is not None else hops([self._objects[one] for one in closed])
        written = first.signature if first is not None else signature(steps, self._known.origins.storing_class)
        self._chains.append(Chain(tuple(closed), written))
        named_kind = (written, *kind)
        if first is None and lines_known:
            first = self._known.kinds.get(named_kind)
        if first is not None:
            named = [
                replace(tensor, name=same.name, shape=same.shape)
                for tensor, same in zip(largest, first.tensors, strict=False)
            ]
            tensors = (*named, *(tensor for tensor, _ in pairs[NAMED:]))
            return replace(first, tensors=tensors, hanging=hanging), [memory for _, memory in pairs]
        holding = {id(step.holder) for step in steps}
        starts = [one for one in chain if id(self._objects[one]) in holding]
        paths = graph.chains(starts, self._edges, inside, members[:NAMED])
        kept = [*self._named(members, paths, steps)]
        tensors = tuple(tensor for tensor, _ in kept)
        known = self._known.known.get(written)
        if known is None:
            known = self._known.known[written] = self._new(chain, steps, tensors, written, paths, inside, size)
        cycle = replace(known, tensors=tensors, hanging=hanging)
        self._first[kind] = self._known.kinds[named_kind] = cycle
        return cycle, [memory for _, memory in kept]

    def _new(
        self,
        chain: Sequence[int],
        steps: Sequence[Hop],
        tensors: tuple[KeptTensor, ...],
        written: str,
        paths: Mapping[int, list[int]],
        inside: Container[int],
        size: int,
    ) -> Cycle:
        objects = [self._objects[one] for one in chain]
        words = pieces(steps)
        if len(chain) > 2 * ENDS:
            words = (
                *words[: len(words) // 2],
                f"... {len(chain) - 2 * ENDS} more objects ...",
                *words[len(words) // 2 :],
            )
        return Cycle(
            words,
            (),
            written,
            harness=harness_of(objects[:ENDS]),
            plain=is_plain(steps),
            diagram=self._diagram(steps, paths, inside, size, tensors) if self._question.draws else None,
            origin=self._known.origins.of(steps, self._lines(tensors)),
        )

    def _turned(self, chain: list[int]) -> list[int]:
        """The cycle from its best start; ties go to the one nearest to the tensor."""
        place = min(range(len(chain)), key=lambda place: rank(self._objects[chain[place]]))
        return chain[place:] + chain[:place]

    def _named(
        self, members: Sequence[int], paths: Mapping[int, list[int]], steps: Sequence[Hop]
    ) -> Iterator[tuple[KeptTensor, StoredMemory]]:
        for one in members:
            for kept, memory in self._memory.get(one, ()):
                if one in paths:
                    tensor = self._objects[one]
                    path = hops([self._objects[place] for place in _shortened(paths[one])])
                    name = name_along(path or [step for step in steps if step.referent is tensor][:1])
                    yield replace(kept, name=name, shape=shape_of(tensor)), memory
                else:
                    yield kept, memory

    def _lines(self, tensors: Sequence[KeptTensor]) -> Iterator[tuple[str, int]]:
        """Files of the project, with the lines in them that allocated the largest tensors, innermost first."""
        locator = self._question.locator
        for tensor in tensors[:NAMED]:
            for frame in () if tensor.stack is None else tensor.stack.frames:
                if frame.origin == "project" and frame.line:
                    yield locator.path(frame), frame.line

    def _diagram(
        self,
        steps: Sequence[Hop],
        paths: Mapping[int, list[int]],
        inside: Container[int],
        size: int,
        tensors: Sequence[KeptTensor],
    ) -> Diagram:
        from cudamem_testing.cycles.draw import cycle_diagram

        def is_known(obj: object) -> bool:
            number = self._places.get(id(obj))
            return number is not None and number in inside

        def context(obj: object) -> str | None:
            lines = []
            for kept, _ in self._memory.get(self._places.get(id(obj), -1), ()):
                frames = () if kept.stack is None else kept.stack.frames
                lines += [f"{kept.bytes} bytes on {kept.device}", *map(str, frames)]
            return "\n".join(lines) or None

        important: list[object] = []
        for path in paths.values():
            on_path = hops([self._objects[one] for one in _shortened(path)])
            important += [step.holder for step in on_path]
            important += [step.referent for step in on_path[-1:]]
        title = f"Reference cycle: {Cycle((), tuple(tensors), '').keeps}"
        return cycle_diagram([step.holder for step in steps], important, is_known, context, size, title)


class _Node:
    """Represents the classes of autograd nodes, which share no base class."""


class _Outer:
    """Objects of a component that are more than the interpreter's inner ones."""

    def __init__(self, objects: Sequence[object], component: Container[int]) -> None:
        self._objects, self._component = objects, component

    def __contains__(self, one: object) -> bool:
        return one in self._component and rank(self._objects[one]) < INNER  # type: ignore[call-overload]


def _totals(storages: Iterable[Storage]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for storage in storages:
        totals[storage.device] += storage.nbytes
    return totals


def _shortened(chain: list[int]) -> list[int]:
    return chain if len(chain) <= 2 * ENDS + 1 else [*chain[:ENDS], *chain[-ENDS - 1 :]]


def _place_of(tensor: KeptTensor) -> tuple[object, ...]:
    frames = () if tensor.stack is None else tensor.stack.frames
    return (tensor.bytes, *(frame for frame in frames if frame.origin == "project"))


def _raw_key(obj: object) -> object:
    """The class of an object, or the code of a function: equal for cycles with the same text."""
    if type(obj) is types.FunctionType:
        return obj.__code__.co_filename, obj.__code__.co_firstlineno
    cls = type(obj)
    return safe_access.class_module(cls), safe_access.class_qualname(cls)
