"""From the garbage of one collection to the cycles in it that keep memory.

In passes, each linear in the garbage: the tensors, and what they hold through C++; who refers to whom; what leads to a
tensor; strongly connected components of that (Tarjan); for each source component the shortest cycle through or towards
its largest tensor. Labels are read only along what is shown. Nothing of the garbage may outlive this: what a cycle
really kept is known once the garbage is gone, so a ``Draft`` holds weak references to storages and is settled then.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import types
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cudamem_testing import static
from cudamem_testing.cycles import graph
from cudamem_testing.cycles.draw import cycle_diagram
from cudamem_testing.cycles.results import NAMED, Cycle, KeptTensor, merged
from cudamem_testing.cycles.source import Sources, is_harness
from cudamem_testing.cycles.words import INNER, Hop, hops, name_along, pieces, rank, shape_of, signature
from cudamem_testing.model.stacks import Locator, Stack
from cudamem_testing.objects import carried_by, is_tensor
from cudamem_testing.objects.torch_references import node_edges, tensor_edges
from cudamem_testing.show.diagrams import Diagram
from cudamem_testing.torch_api.nodes import is_node_type
from cudamem_testing.torch_api.tensors import StoredMemory, TensorBase

#: Objects outside the garbage, held by it through C++, that are looked at.
MOST_BEYOND = 20_000
#: Objects at the start and at the end of a long cycle that are put into words.
ENDS = 24
#: Cycles of one collection that are put into words; what others keep is counted with those of the same classes.
MOST_CYCLES = 100
NOBODY = -1
UNSEEN = "(through C++, where it cannot be followed)"

Allocated = Callable[[str, int], "Stack | None"]


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for.

    ``device`` tells which devices count. ``allocated`` gives the stack that allocated the block at an address of a
    device; with ``known_only``, blocks that it does not know do not count. ``kind`` looks for instances of a class in
    the place of tensors.
    """

    locator: Locator
    device: Callable[[str], bool] = lambda device: True
    allocated: Allocated = lambda device, address: None
    known_only: bool = False
    kind: type | None = None


class Draft:
    """Cycles of garbage that is still there, with weak references to what they keep."""

    def __init__(self, found: list[tuple[Cycle, list[StoredMemory]]], needs_tensors: bool) -> None:
        self._found = found
        self._needs_tensors = needs_tensors

    def settled(self, *, freed: bool = True) -> list[Cycle]:
        """The cycles with what was freed when the garbage went; without ``freed``, with everything they referred to."""
        cycles = []
        for cycle, memory in self._found:
            kept = tuple(tensor for tensor, weak in zip(cycle.tensors, memory, strict=True) if not freed or weak.gone)
            if kept or not self._needs_tensors:
                cycles.append(replace(cycle, tensors=kept))
        return merged(cycles)


def explain(garbage: Sequence[object], question: Question) -> Draft:
    """The cycles in garbage that keep what is asked for."""
    return Draft(list(_Explanation(garbage, question).cycles()), question.kind is None)


class _Explanation:
    """The working state of one explanation; holds the garbage, and goes with it."""

    def __init__(self, garbage: Sequence[object], question: Question) -> None:
        self._question = question
        self._sources = Sources(question.locator)
        self._garbage = len(garbage)
        self._objects = [*garbage]
        self._places = dict(zip(map(id, self._objects), range(len(self._objects)), strict=True))
        self._targets = self._instances(question.kind or TensorBase)
        beyond = [*self._follow_cpp()] if self._targets else []
        self._edges = graph.referents(self._objects, self._places, beyond) if self._targets else []
        self._memory: dict[int, list[tuple[KeptTensor, StoredMemory]]] = {}

    def _instances(self, *wanted: type) -> list[int]:
        """Places of instances of some classes; each class among the objects is judged once, by its id."""
        types_ = list(map(type, self._objects))
        ids = list(map(id, types_))
        classes = dict(zip(ids, types_, strict=True))
        chosen = {
            number
            for number, cls in classes.items()
            if any(static.derives(cls, base) for base in wanted) or (len(wanted) > 1 and is_node_type(cls))
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
        self._read_memory()
        targets = self._targets if self._question.kind is not None else [*self._memory]
        if not targets:
            return
        holders = graph.reversed_edges(self._edges)
        relevant = graph.ancestors(holders, targets)
        found = graph.components(relevant, self._edges)
        keeper = graph.keepers(found, self._edges)
        groups: dict[int, list[int]] = {}
        for target in targets:
            groups.setdefault(keeper.get(target, NOBODY), []).append(target)
        cyclic = Counter(keeper[one[0]] for one in found if graph.is_cyclic(one, self._edges))
        sizes = Counter(keeper.values())
        written: dict[tuple[object, ...], Cycle] = {}
        unseen = groups.pop(NOBODY, None)
        for place, members in sorted(groups.items(), key=lambda pair: -self._bytes(pair[1])):
            members.sort(key=lambda one: -self._bytes([one]))
            inside = _Region(keeper, place)
            yield self._cycle(found[place], members, inside, holders, cyclic[place] - 1, sizes[place], written)
        if unseen is not None:
            kept = [pair for one in unseen for pair in self._memory.get(one, ())]
            yield Cycle((UNSEEN,), tuple(tensor for tensor, _ in kept), UNSEEN), [memory for _, memory in kept]

    def _read_memory(self) -> None:
        """The storages of all tensors, each once: the first tensor stands for it."""
        seen: set[int] = set()
        question = self._question
        for place in self._targets if question.kind is None else self._instances(TensorBase):
            for storage, carrier in carried_by(self._objects[place]):
                if storage.identity in seen or not question.device(storage.device):
                    continue
                seen.add(storage.identity)
                stack = question.allocated(storage.device, storage.address)
                if stack is None and question.known_only:
                    continue
                line = None if stack is None else stack.line
                frames = () if stack is None else tuple(map(str, stack.frames))
                kept = KeptTensor("", "", storage.nbytes, storage.device, storage.address, line, frames)
                self._memory.setdefault(place, []).append((kept, StoredMemory(carrier)))

    def _bytes(self, members: Sequence[int]) -> int:
        return sum(tensor.bytes for one in members for tensor, _ in self._memory.get(one, ()))

    def _cycle(
        self,
        component: Sequence[int],
        members: list[int],
        inside: _Region,
        holders: graph.Edges,
        hanging: int,
        size: int,
        written: dict[tuple[object, ...], Cycle],
    ) -> tuple[Cycle, list[StoredMemory]]:
        within = set(component)
        start = graph.nearest(members[0], holders, inside, _Outer(self._objects, within))
        if start is None:  # nothing but dictionaries and tuples
            start = component[0]
        chain = self._turned(graph.shortest_cycle(start, self._edges, within))
        key = tuple(map(_raw_key, (self._objects[one] for one in chain)))
        first = written.get(key) if len(written) >= MOST_CYCLES else None
        if first is not None:
            kept = [pair for one in members for pair in self._memory.get(one, ())]
            tensors = tuple(tensor for tensor, _ in kept)
            return replace(first, tensors=tensors, hanging=hanging), [memory for _, memory in kept]
        steps = hops([self._objects[one] for one in _shortened([*chain, chain[0]])])
        holding = {id(step.holder) for step in steps}
        starts = [one for one in chain if id(self._objects[one]) in holding]
        paths = graph.chains(starts, self._edges, inside, members[:NAMED])
        kept = [*self._named(members, paths, steps)]
        tensors = tuple(tensor for tensor, _ in kept)
        objects = [self._objects[one] for one in chain]
        words = pieces(steps)
        if len(chain) > 2 * ENDS:
            words = (
                *words[: len(words) // 2],
                f"... {len(chain) - 2 * ENDS} more objects ...",
                *words[len(words) // 2 :],
            )
        cycle = Cycle(
            words,
            tensors,
            signature(steps),
            any(map(self._sources.is_project, objects[:ENDS])),
            any(map(is_harness, objects[:ENDS])),
            self._sources.closed_by(steps, self._lines(tensors)),
            hanging,
            diagram=self._diagram(steps, paths, inside, size, tensors),
        )
        written[key] = cycle
        return cycle, [memory for _, memory in kept]

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
        """Files of the project, with the lines in them that allocated the largest tensors."""
        root = self._question.locator.root
        for place in dict.fromkeys(tensor.allocated for tensor in tensors[:NAMED] if tensor.allocated):
            file, _, number = place.partition(" in ")[0].rpartition(":")
            if file and number.isdecimal():
                yield f"{root}/{file}", int(number)

    def _diagram(
        self,
        steps: Sequence[Hop],
        paths: Mapping[int, list[int]],
        inside: _Region,
        size: int,
        tensors: Sequence[KeptTensor],
    ) -> Diagram:
        def is_known(obj: object) -> bool:
            number = self._places.get(id(obj))
            return number is not None and number in inside

        def context(obj: object) -> str | None:
            pairs = self._memory.get(self._places.get(id(obj), -1))
            if not pairs:
                return None
            return "\n".join("\n".join((f"{kept.bytes} bytes on {kept.device}", *kept.stack)) for kept, _ in pairs)

        important: list[object] = []
        for path in paths.values():
            on_path = hops([self._objects[one] for one in _shortened(path)])
            important += [step.holder for step in on_path]
            important += [step.referent for step in on_path[-1:]]
        title = f"Reference cycle: {Cycle((), tuple(tensors), '').keeps}"
        return cycle_diagram([step.holder for step in steps], important, is_known, context, size, title)


class _Node:
    """Stands for the classes of autograd nodes, which have no base of their own."""


class _Outer:
    """Objects of a component that are more than the interpreter's inner ones."""

    def __init__(self, objects: Sequence[object], component: Container[int]) -> None:
        self._objects, self._component = objects, component

    def __contains__(self, one: object) -> bool:
        return one in self._component and rank(self._objects[one]) < INNER  # type: ignore[call-overload]


class _Region:
    """The objects that one source component keeps."""

    def __init__(self, keeper: dict[int, int], place: int) -> None:
        self._keeper, self._place = keeper, place

    def __contains__(self, one: object) -> bool:
        return self._keeper.get(one) == self._place  # type: ignore[call-overload, no-any-return]


def _shortened(chain: list[int]) -> list[int]:
    return chain if len(chain) <= 2 * ENDS + 1 else [*chain[:ENDS], *chain[-ENDS - 1 :]]


def _raw_key(obj: object) -> object:
    """Which class an object has, for functions which code: equal for cycles that would be written alike."""
    return id(obj.__code__) if type(obj) is types.FunctionType else id(type(obj))
