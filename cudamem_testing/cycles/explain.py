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

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import thread_time
from typing import TYPE_CHECKING

from cudamem_testing import safe_access
from cudamem_testing.cycles.draft import Draft, Found, Question, project_lines
from cudamem_testing.cycles.memory import Chain, Memory
from cudamem_testing.cycles.native import NONE, Blocks, Graph, Item, Storages, TooLongError
from cudamem_testing.cycles.origins import harness_of
from cudamem_testing.cycles.results import NAMED, UNREAD, Cycle, KeptTensor
from cudamem_testing.cycles.words import (
    Hop,
    hops,
    is_plain,
    name_along,
    pieces,
    pieces_of_ends,
    rank,
    raw_key,
    shape_of,
    signature,
    tied,
)
from cudamem_testing.objects.tensors import Storage, carried_by, is_tensor
from cudamem_testing.objects.torch_references import node_edges, tensor_edges
from cudamem_testing.torch_api import tensors
from cudamem_testing.torch_api.nodes import is_node_type
from cudamem_testing.torch_api.tensors import StoredMemory, TensorBase
from cudamem_testing.unfinalized import Part

if TYPE_CHECKING:
    from cudamem_testing.model.stacks import Stack
    from cudamem_testing.show.diagrams import Diagram

#: Objects at the start and at the end of a long cycle that are put into words, and among which it may start.
ENDS, STARTS = 24, 200
#: As many at both ends of the way from a long cycle to a tensor are part of its name.
NAMED_ENDS = 8
#: Cycles of the same classes in one collection that are read; what others keep is counted with those.
MOST_ALIKE = 8
UNSEEN = "(through C++, where it cannot be followed)"


def explain(garbage: Sequence[object], question: Question, parts: Sequence[Part] = ()) -> Draft:
    """The cycles in garbage that keep what is asked for; none if that is not enough.

    ``parts`` are what the garbage consists of, one after the other; the question's memory keeps where their cycles are.
    Without time for all that keeps memory there is none either: then the native part notes it.
    """
    with Graph([*garbage]) as graph:
        reading = _Explanation(graph, question)
        try:
            draft = Draft([*reading.cycles()] if reading.is_enough() else [], reading.storages, question)
        except BaseException as error:  # that of a signal handler among them
            if reading.storages is not None:
                reading.storages.settle()
            if type(error) is TooLongError:
                return Draft([], None, question)
            raise
        if parts and question.memory is not None and not reading.is_late():
            question.memory.parts.update(reading.parts(parts))
    return draft


class _Group:
    """What a component keeps: the numbers of storages, the largest first, and the places of other targets."""

    __slots__ = ("others", "storages")

    def __init__(self, storages: range = range(0)) -> None:
        self.storages = storages
        self.others: list[int] = []


class _Explanation:
    """The working state of one explanation. It holds the garbage and must not outlive it."""

    def __init__(self, graph: Graph, question: Question) -> None:
        self._question = question
        self._ends = None if question.seconds is None else thread_time() + question.seconds
        self._known = question.memory or Memory(question.locator)
        self._graph, self._objects = graph, graph.objects
        self.storages: Storages | None = None
        #: Memory of tensors that only Python can read, by place.
        self._memory: dict[int, list[tuple[KeptTensor, StoredMemory]]] = {}
        self._targets: list[int] = []
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
        kind = self._question.kind
        found = self._graph.instances(_is_tensor_class)
        if kind is not None:
            self._targets = self._graph.instances(lambda cls: safe_access.derives(cls, kind))
            found = [*{*found}.intersection(self._targets)]
        if not (found or self._targets):
            return False
        unread, followed = self._read(sorted(found))
        beyond = [*self._follow_cpp([*followed, *self._graph.instances(is_node_type)])]
        if kind is None:
            unread += self._read(beyond, gradients=False)[0]
        counts, known = self._question.counts, set[int]()
        if unread and self.storages is not None:
            known = {item.address for item in self.storages.items(0, self.storages.count)}
        others = [
            one
            for one in self._of_python(unread)
            if one[1].address not in known and (kind is not None or counts(one[1].device, one[1].address))
        ]
        self._keep(self._counts)
        totals = Counter[str]() if self.storages is None else Counter(self.storages.totals())
        for _, storage, _ in others:
            totals[storage.device] += storage.nbytes
        if kind is None and not (totals and self._question.enough(totals)):
            return False
        if self._question.known_only:
            self._keep(self._is_known)
        for place, storage, carrier in others:
            stack = self._question.allocated(storage.device, storage.address)
            if stack is not None or not self._question.known_only:
                kept = KeptTensor("", "", storage.nbytes, storage.device, storage.address, stack)
                self._memory.setdefault(place, []).append((kept, StoredMemory(carrier)))
        return kind is not None or bool(self._memory) or (self.storages is not None and self.storages.count > 0)

    def _keep(self, counts: Callable[[Item], bool]) -> None:
        """Drop the storages that do not count, on devices of which native code cannot tell."""
        question, storages = self._question, self.storages
        if storages is None or not any(map(question.asks_for, storages.totals())):
            return
        items = storages.items(0, storages.count)
        chosen = [not question.asks_for(item.on) or counts(item) for item in items]
        if not all(chosen):
            storages.keep(chosen)

    def _counts(self, item: Item) -> bool:
        return self._question.device(item.on) and self._question.counts(item.on, item.address)

    def _is_known(self, item: Item) -> bool:
        return self._question.allocated(item.on, item.address) is not None

    def _read(self, places: list[int], *, gradients: bool = True) -> tuple[list[int], list[int]]:
        """Read what native code can; returns what Python has to read, and to follow."""
        offset = tensors.implementation_offset()
        if offset is None:
            return places, places
        if self.storages is None:
            blocks = self._question.blocks or Blocks()
            self.storages = Storages(self._graph, blocks, offset, tensors.parameter_class())
        return self.storages.read(self._graph, places, gradients=gradients)

    def _follow_cpp(self, starts: Sequence[int]) -> Iterator[int]:
        """Follow what tensors and autograd nodes hold through C++; objects beyond the garbage are added to the graph.

        Returns the tensors among these.
        """
        graph = self._graph
        limit = len(self._objects) + self._question.beyond
        is_cut = False
        waiting = deque(sorted(starts))
        while waiting:
            if self.is_late():
                is_cut = True
                break
            place = waiting.popleft()
            obj = self._objects[place]
            found = tensor_edges(obj) if is_tensor(obj) else node_edges(obj, metadata=False)
            for _, _, referent in found:
                if referent is None:
                    continue
                target = graph.find(referent)
                if target == NONE:
                    is_followed = is_tensor(referent) or is_node_type(type(referent))
                    if not is_followed or len(self._objects) >= limit:
                        is_cut |= is_followed
                        continue
                    target = graph.add(referent)
                    waiting.append(target)
                    if is_tensor(referent):
                        yield target
                graph.refer(place, target)
        if is_cut:
            self._question.cut()

    def _of_python(self, places: Sequence[int]) -> Iterator[tuple[int, Storage, object]]:
        """The storages of some tensors on the devices that count, each once, by its first tensor."""
        seen: set[int] = set()
        for place in places:
            for storage, carrier in carried_by(self._objects[place]):
                if storage.identity not in seen and self._question.device(storage.device):
                    seen.add(storage.identity)
                    yield place, storage, carrier

    def is_late(self) -> bool:
        """Whether there is no time for more."""
        return self._ends is not None and thread_time() > self._ends

    def cycles(self) -> Iterator[Found]:
        """Every source component that keeps something, put into words."""
        graph = self._graph
        others = self._targets if self._question.kind is not None else [*self._memory]
        graph.search(self.storages, others)
        groups: dict[int, _Group] = {}
        first = 0
        for component, last in self.storages.groups() if self.storages is not None else ():
            groups[component], first = _Group(range(first, last)), last
        if others and self.storages is not None:
            known = {item.place for item in self.storages.items(0, self.storages.count)}
            others = [one for one in others if one not in known or one in self._memory]
        for one in others:
            groups.setdefault(graph.keeper(one), _Group()).others.append(one)
        unseen = groups.pop(NONE, None)
        found = groups.items() if not others else sorted(groups.items(), key=lambda pair: -self._bytes(pair[1]))
        remaining = iter(found)
        for component, group in remaining:
            yield self._cycle(component, group)
            if self.is_late():
                break
        if left := [group for _, group in remaining]:
            self._question.stopped()
            yield from self._unread(left)
        if unseen is not None:
            kept = [pair for one in unseen.others for pair in self._memory.get(one, ())]
            yield Found(Cycle((UNSEEN,), (), UNSEEN), [*kept], unseen.storages)

    def _unread(self, groups: Sequence[_Group]) -> Iterator[Found]:
        """What there is no time for; storages that follow each other together."""
        kept = [pair for group in groups for one in group.others for pair in self._memory.get(one, ())]
        ranges: list[range] = []
        for group in groups:
            first = ranges.pop() if ranges and ranges[-1].stop == group.storages.start else group.storages
            ranges.append(range(first.start, group.storages.stop))
        yield Found(Cycle((UNREAD,), (), UNREAD, count=len(groups) - len(ranges) + 1), [*kept], ranges[0])
        yield from (Found(Cycle((UNREAD,), (), UNREAD), [], rest) for rest in ranges[1:])

    def _bytes(self, group: _Group) -> int:
        read = self._items(group.storages)
        others = (tensor for one in group.others for tensor, _ in self._memory.get(one, ()))
        return sum(item.bytes for item in read) + sum(tensor.bytes for tensor in others)

    def _items(self, numbers: range) -> list[Item]:
        return self.storages.items(numbers.start, numbers.stop) if self.storages is not None and numbers else []

    def _largest(self, group: _Group) -> tuple[list[tuple[int, KeptTensor, StoredMemory | int]], range]:
        """The largest tensors of a group, with all that Python read, and the numbers of the others."""
        first = group.storages[:NAMED]
        found: list[tuple[int, KeptTensor, StoredMemory | int]] = []
        for number, item in zip(first, self._items(first), strict=True):
            found.append((item.place, KeptTensor("", "", item.bytes, item.on, item.address, self._stack(item)), number))
        found += [(one, *pair) for one in group.others for pair in self._memory.get(one, ())]
        return sorted(found, key=lambda one: -one[1].bytes), group.storages[NAMED:]

    def _stack(self, item: Item) -> Stack | None:
        if self._question.asks_for(item.on):
            return self._question.allocated(item.on, item.address)
        return None if item.stack == NONE else self._question.stack_of(item.stack)

    def _cycle(self, component: int, group: _Group) -> Found:
        largest, rest = self._largest(group)
        kept = [(tensor, where) for _, tensor, where in largest]
        heads = [tensor for _, tensor, _ in largest[:NAMED]]
        members = [*dict.fromkeys(place for place, _, _ in largest[:NAMED])] or group.others[:1]
        chain = self._turned(self._graph.cycle(members[0]))
        closed = _shortened([*chain, chain[0]])
        ends = [self._objects[one] for one in closed[:-1]]
        kind = (len(largest) + len(rest), len(chain), *map(raw_key, ends), *map(_place_of, heads))
        self._alike[kind] += 1
        first = self._first.get(kind) if self._alike[kind] > MOST_ALIKE else None
        steps = [] if first is not None else hops([self._objects[one] for one in closed])
        written = first.signature if first is not None else signature(steps, self._known.origins.storing_class)
        self._chains.append(Chain(tuple(closed), written))
        named_kind = (written, *kind)
        if first is None and heads and all(tensor.stack is not None for tensor in heads):
            first = self._known.kinds.get(named_kind)
        hanging = self._graph.hanging(component)
        if first is not None:
            for number, same in zip(range(len(heads)), first.tensors, strict=False):
                tensor, where = kept[number]
                kept[number] = tensor._replace(name=same.name, shape=same.shape), where
            return Found(replace(first, tensors=(), hanging=hanging), kept, rest)
        holding = {id(step.holder) for step in steps}
        starts = [one for one in closed[:-1] if id(self._objects[one]) in holding]
        paths = self._graph.chains(component, starts, members)
        for number, (place, tensor, where) in enumerate(largest):
            if place in paths:
                kept[number] = self._named(place, tensor, paths, steps), where
        named = tuple(tensor for tensor, _ in kept[:NAMED])
        known = self._known.known.get(written)
        if known is None:
            known = self._known.known[written] = self._new(component, chain, steps, named, written, paths, group)
        cycle = replace(known, tensors=named, hanging=hanging)
        self._first[kind] = self._known.kinds[named_kind] = cycle
        return Found(cycle, kept, rest)

    def _new(
        self,
        component: int,
        chain: Sequence[int],
        steps: Sequence[Hop],
        named: tuple[KeptTensor, ...],
        written: str,
        paths: Mapping[int, list[int]],
        group: _Group,
    ) -> Cycle:
        left_out = len(chain) - 2 * ENDS
        return Cycle(
            pieces(steps) if left_out <= 0 else pieces_of_ends(steps, ENDS, left_out),
            (),
            written,
            harness=harness_of(self._objects[one] for one in chain[:ENDS]),
            plain=is_plain(steps),
            tied=tied(steps),
            diagram=self._diagram(component, steps, paths, named, group) if self._question.draws else None,
            origin=self._known.origins.of(steps, project_lines(self._question.locator, named)),
        )

    def _turned(self, chain: list[int]) -> list[int]:
        """The cycle from its best start; ties go to the one nearest to the tensor."""
        place = min(range(min(len(chain), STARTS)), key=lambda place: rank(self._objects[chain[place]]))
        return chain[place:] + chain[:place]

    def _named(self, place: int, kept: KeptTensor, paths: Mapping[int, list[int]], steps: Sequence[Hop]) -> KeptTensor:
        tensor = self._object(place)
        path = hops([self._object(one) for one in _shortened(paths[place], NAMED_ENDS)])
        name = name_along(path or [step for step in steps if step.referent is tensor][:1])
        return kept._replace(name=name, shape=shape_of(tensor))

    def _object(self, place: int) -> object:
        """The object at a place; that of a gradient is made when it is first asked for."""
        parameter = None if self.storages is None else self.storages.parameters.get(place)
        if parameter is not None and self._objects[place] is None:
            with tensors.quiet():
                self._objects[place] = tensors.grad(self._objects[parameter])
        return self._objects[place]

    def _diagram(
        self,
        component: int,
        steps: Sequence[Hop],
        paths: Mapping[int, list[int]],
        named: Sequence[KeptTensor],
        group: _Group,
    ) -> Diagram:
        from cudamem_testing.cycles.draw import cycle_diagram

        graph = self._graph
        sizes = {item.place: (item.bytes, item.on, self._stack(item)) for item in self._items(group.storages)}

        def is_known(obj: object) -> bool:
            number = graph.find(obj)
            return number != NONE and graph.keeper(number) == component

        def context(obj: object) -> str | None:
            lines = []
            number = graph.find(obj)
            kept = [(tensor.bytes, tensor.device, tensor.stack) for tensor, _ in self._memory.get(number, ())]
            if number in sizes:
                kept.append(sizes[number])
            for size, device, stack in kept:
                lines += [f"{size} bytes on {device}", *map(str, () if stack is None else stack.frames)]
            return "\n".join(lines) or None

        important: list[object] = []
        for path in paths.values():
            on_path = hops([self._object(one) for one in _shortened(path)])
            important += [step.holder for step in on_path]
            important += [step.referent for step in on_path[-1:]]
        keeps = Cycle((), tuple(named), "").keeps
        return cycle_diagram(
            [step.holder for step in steps],
            important,
            is_known,
            context,
            graph.size(component),
            f"Reference cycle: {keeps}",
        )


def _is_tensor_class(cls: type) -> bool:
    return safe_access.derives(cls, TensorBase)


def _shortened(chain: list[int], ends: int = ENDS) -> list[int]:
    return chain if len(chain) <= 2 * ends + 1 else [*chain[:ends], *chain[-ends - 1 :]]


def _place_of(tensor: KeptTensor) -> tuple[object, ...]:
    frames = () if tensor.stack is None else tensor.stack.frames
    return (tensor.bytes, *(frame for frame in frames if frame.origin == "project"))
