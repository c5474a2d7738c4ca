"""Data flow: which operator reads, writes, makes and frees which version of which storage.

From the events of a trace to a graph in three steps, each a function below:

1. **Leaves.** Operators call operators; ``aten::zero_`` is implemented by ``aten::fill_``. The graph shows neither the
   annotation around both nor the detail inside: the topmost call that a schema recognises is a node, with all that
   happens inside it, and so is a backward function. An allocation or free outside of any such call becomes a separate
   node ``[memory]``: Python dropped a tensor, autograd released a saved one, a number was wrapped as a tensor.
2. **Touches.** What a node does to a storage is the sum of what its subtree does: read when any operator inside takes
   it; written when a fitting schema writes it, or when only calls without a schema took it (then nothing is known, and
   a write has to be assumed); created and freed as the allocator reported.
3. **Versions.** The nodes are replayed in the order in which they started. Contents begin as version 0, a node that
   writes a storage it did not create makes the next version. What a node leaves is listed in the order of its next use,
   because the order in which a kernel allocates its results differs between devices.

A trace of several threads, or one with holes, may contradict itself: a storage used after it was freed, freed twice,
created after its first use. Each contradiction is a :class:`Diagnostic` of the result; the replay continues with what
the allocator reported. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from cudamem_testing.trace.records import Allocation, Event, Operator, Scope, Storage, Trace
from cudamem_testing.trace.schemas import READ, UNKNOWN, WRITTEN, Effects

CREATED, FREED, FREED_TWICE = 8, 16, 32
"""Flags of a touch in addition to those of :mod:`.schemas`."""
_ACCESS = READ | WRITTEN | UNKNOWN

Touches: TypeAlias = dict[Storage, int]
"""What one node does to each storage, in the order in which its subtree met them: arguments, frees, allocations."""

MEMORY = "[memory]"


class Use(NamedTuple):
    """What a node does to a storage: its version before and after.

    ``before`` is ``None`` when the node creates it, ``after`` when the node frees it; both are for an intermediate.
    A read does not change the version.
    """

    storage: Storage
    before: int | None
    after: int | None

    @property
    def is_input(self) -> bool:
        """Whether the node takes the storage from outside, if only to free it."""
        return self.before is not None

    @property
    def is_output(self) -> bool:
        """Whether the node leaves a version that did not exist before."""
        return self.after is not None and self.after != self.before

    @property
    def is_intermediate(self) -> bool:
        """Whether the storage lives only inside the node."""
        return self.before is None and self.after is None

    @property
    def is_created(self) -> bool:
        """Whether the storage is made here and left."""
        return self.before is None and self.after is not None

    @property
    def is_written(self) -> bool:
        """Whether the node changes contents that existed before."""
        return self.before is not None and self.after is not None and self.after != self.before

    @property
    def is_freed(self) -> bool:
        """Whether the storage, from outside, is freed here."""
        return self.before is not None and self.after is None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node:
    """A leaf operator, a backward function, or one allocation or free outside of them."""

    index: int
    """Position in the data flow."""
    event: int
    """Index of its event in the trace."""
    name: str
    start: int
    thread: int
    scope: Scope
    uses: tuple[Use, ...]

    @property
    def inputs(self) -> tuple[Use, ...]:
        """What it takes from outside, in order of the arguments."""
        return tuple(use for use in self.uses if use.before is not None)

    @property
    def outputs(self) -> tuple[Use, ...]:
        """What it writes or leaves behind."""
        return tuple(use for use in self.uses if use.after is not None and use.after != use.before)

    @property
    def intermediates(self) -> tuple[Storage, ...]:
        """What lives only inside it."""
        return tuple(use.storage for use in self.uses if use.is_intermediate)

    def __str__(self) -> str:
        return f"{self.name} ({len(self.inputs)} inputs, {len(self.outputs)} outputs)"

    def __repr__(self) -> str:
        return f"<node {self.index} {self}>"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A contradiction in a trace, at a node; the analysis continues after it."""

    node: int
    problem: str
    storage: int
    """Index of the storage in the trace."""

    def __str__(self) -> str:
        return f"node {self.node}: storage {self.storage} {self.problem}"


class NodeDraft(NamedTuple):
    """A node before its versions are known."""

    event: int
    name: str
    start: int
    thread: int
    scope: Scope
    touches: Touches


def find_leaves(trace: Trace, effects: Effects) -> list[int]:
    """Indices of the events that become nodes, in the order in which they started."""
    events, stops = trace.events, trace.stops
    found = []
    index, end = 0, len(events)
    while index < end:
        event = events[index]
        if isinstance(event, Operator):
            is_leaf = event.signature.backward or effects[event.signature].known
        else:
            is_leaf = isinstance(event, Allocation)
        if is_leaf:
            found.append(index)
            index = stops[index]
        else:
            index += 1
    found.sort(key=lambda index: events[index].start)
    return found


def find_touches(subtree: Iterable[Event], effects: Effects) -> Touches:
    """What a subtree does to each storage."""
    touches: Touches = {}
    freed: list[Storage] = []
    created: list[Storage] = []
    for event in subtree:
        if isinstance(event, Operator):
            for argument, access in zip(event.arguments, effects[event.signature].access, strict=True):
                for storage in (argument,) if isinstance(argument, Storage) else argument:
                    touches[storage] = touches.get(storage, 0) | access
        elif isinstance(event, Allocation) and event.storage is not None:
            (created if event.nbytes > 0 else freed).append(event.storage)
    for storage in freed:
        touches[storage] = touches.get(storage, 0) | (FREED_TWICE if touches.get(storage, 0) & FREED else FREED)
    for storage in created:
        touches[storage] = touches.get(storage, 0) | CREATED
    return touches


def steps_of(trace: Trace, effects: Effects) -> Iterator[NodeDraft]:
    """The nodes before their versions are known, in order."""
    events, stops = trace.events, trace.stops
    for index in find_leaves(trace, effects):
        event = events[index]
        touches: Touches = {}
        name = MEMORY
        if isinstance(event, Operator):
            name, touches = event.name, find_touches(events[index : stops[index]], effects)
        elif isinstance(event, Allocation) and event.storage is not None:
            touches = {event.storage: CREATED if event.nbytes > 0 else FREED}
        yield NodeDraft(index, name, event.start, event.thread, event.scope, touches)


def replay(steps: Iterable[NodeDraft]) -> tuple[list[Node], list[Diagnostic]]:
    """Give the steps their versions, and note contradictions. A storage keeps counting through contradictions, so that
    one node makes each version.
    """
    nodes: list[Node] = []
    diagnostics: list[Diagnostic] = []
    versions: dict[Storage, int] = {}
    freed: set[Storage] = set()
    for step in steps:
        uses = []
        for storage, flags in step.touches.items():
            version = versions.get(storage)
            problem = _problem(flags, version is not None, storage in freed)
            if problem:
                diagnostics.append(Diagnostic(len(nodes), problem, storage.index))
            if flags & CREATED:
                before, after = None, 0 if version is None else version + 1
            else:
                before = version or 0
                after = before + 1 if flags & WRITTEN or flags & _ACCESS == UNKNOWN else before
            versions[storage] = after
            if flags & FREED:
                freed.add(storage)
                versions[storage] = version or 0
                uses.append(Use(storage, before, None))
            else:
                uses.append(Use(storage, before, after))
        nodes.append(Node(len(nodes), step.event, step.name, step.start, step.thread, step.scope, tuple(uses)))
    return _by_next_use(nodes), diagnostics


def _by_next_use(nodes: list[Node]) -> list[Node]:
    """The nodes, each with what it creates in the order of its next use; unused storages come last, in their order."""
    never = (len(nodes), 0)
    next_use: dict[Storage, tuple[int, int]] = {}
    ordered: list[Node] = []
    for node in reversed(nodes):
        uses = node.uses
        made = [use for use in uses if use.is_created]
        if len(made) > 1:
            made.sort(key=lambda use: next_use.get(use.storage, never))
            following = iter(made)
            uses = tuple([next(following) if use.is_created else use for use in uses])
            node = replace(node, uses=uses)
        for place, use in enumerate(uses):
            next_use[use.storage] = (node.index, place)
        ordered.append(node)
    ordered.reverse()
    return ordered


def _problem(flags: int, seen: bool, freed: bool) -> str:
    if flags & FREED_TWICE or (freed and flags & FREED):
        return "was freed twice"
    if flags & CREATED and seen:
        return "was created after its first use"
    if freed:
        return "was used after it was freed"
    return ""
