"""What one pass over the profiler's events makes: plain records, in one flat list.

The profiler's own tree is a forest of C++ objects whose attributes take a microsecond for each access. The reader reads
each of them once and keeps tuples. The tree itself is kept as two columns of integers beside the list: events are in
*depth-first order*, so the subtree of event ``i`` is the slice ``events[i:stops[i]]``, and its parent is
``parents[i]``.

Times are nanoseconds on the profiler's clock, sizes are bytes, devices are spelt as torch spells them (``cpu``,
``cuda:0``). Threads are numbered by first appearance, because a thread's id differs from run to run.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from ..model.stacks import RawFrame


@dataclass(slots=True, eq=False, repr=False)
class Storage:
    """One allocation that tensors live in; every view of it is the same storage. Written ``T3`` in texts.

    The profiler distinguishes storages that followed each other at one address (``allocation``), and finds which of
    them were the same tensor one after the other, as when ``x.data`` is replaced (``number``). Compared by identity.
    The reader increases ``nbytes`` while it reads; afterwards nothing changes.
    """

    index: int
    """Index in :attr:`Trace.storages`."""
    number: int
    """The profiler's tensor number, as its own texts print it."""
    allocation: int
    """The profiler's number of the allocation. Shared by storages only where the profiler missed a free."""
    pointer: int
    device: str
    nbytes: int = 0
    """What the allocator gave or took back; else the largest extent of a tensor seen in it."""
    measured: bool = False
    """Whether ``nbytes`` comes from the allocator."""
    dtype: str | None = None
    """Of the first tensor that was seen in it, as ``float32``; ``None`` where no operator took one."""

    def __repr__(self) -> str:
        return f"<storage {self.index}, {self.nbytes} bytes on {self.device}>"


_FUNCTION = re.compile(r"(.*)\(\d+\): (.*)")

Argument: TypeAlias = "Storage | tuple[Storage, ...]"
"""What an operator was called with: a tensor's storage, or those of a list of tensors."""


class ScopeKind(Enum):
    """What opened a scope."""

    THREAD = "thread"
    MODULE = "module"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """The scopes around an event: a chain from the innermost one out to its thread.

    The reader passes it down the tree, so that it takes no second walk to find whether something was in the backward
    pass, or in which module. An event that opens a scope is inside it. Events of one scope share one object.
    """

    kind: ScopeKind
    name: str
    parent: Scope | None
    event: int
    """Index of the event that opened it; -1 for a thread."""
    backward: bool = False
    """Whether a backward function is among the scopes."""

    def chain(self) -> Iterator[Scope]:
        """This scope and all around it, from the inside out."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def within(self, kind: ScopeKind) -> Scope | None:
        """The innermost scope of a kind."""
        return next((scope for scope in self.chain() if scope.kind is kind), None)

    def path(self, kind: ScopeKind) -> tuple[str, ...]:
        """The names of all scopes of a kind, from the outside in."""
        return tuple(scope.name for scope in self.chain() if scope.kind is kind)[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """The signature that all calls of one name with the same types of arguments share; a trace has few of them.

    ``record_function`` annotations, backward functions and operators all reach the profiler in the same way. ``role``
    and whether a schema fits (:mod:`.schemas`) distinguish them.
    """

    name: str
    types: tuple[type, ...]
    """The Python type of each argument; ``Storage`` for a tensor, ``list`` for a list of tensors, ``NoneType`` for
    types that the profiler does not record."""
    places: tuple[int, ...]
    """Which of the arguments are tensors or lists of tensors."""
    role: str
    """The profiler's record scope: ``FUNCTION``, ``BACKWARD_FUNCTION``, ``USER_SCOPE``, ..."""

    @property
    def backward(self) -> bool:
        """Whether these calls are nodes of an autograd graph."""
        return self.role == "BACKWARD_FUNCTION"

    @property
    def region(self) -> bool:
        """Whether these calls are annotations in source around a piece of code."""
        return self.role == "USER_SCOPE"


class Region(NamedTuple):
    """The span of an annotation: ``record_function``, an optimizer's step.

    Regions are not scopes, because the profiler's tree does not show what is inside them: an annotation is opened by a
    Python function that returns at once, and is this function's child. Times show what is inside.
    """

    name: str
    start: int
    end: int
    thread: int
    parent: int
    """Index of the region it began in, in :attr:`Trace.regions`; -1 for none."""
    event: int


class Operator(NamedTuple):
    """A call that torch's dispatcher, its autograd engine or an annotation recorded."""

    start: int
    end: int
    thread: int
    scope: Scope
    signature: Signature
    arguments: tuple[Argument, ...]
    """Those that are tensors or lists of tensors, at ``signature.places``."""
    sequence: int
    """The number that a backward function shares with the operator of the forward pass that made it; -1 without one."""

    @property
    def name(self) -> str:
        """As the profiler spells it: ``aten::mul``, ``torch::autograd::AccumulateGrad``, an annotation's text."""
        return self.signature.name


class Allocation(NamedTuple):
    """Memory given out (``nbytes`` above 0) or taken back (below 0) by an allocator."""

    start: int
    thread: int
    scope: Scope
    storage: Storage | None
    """``None`` when no tensor was ever seen in it, as with a workspace."""
    pointer: int
    device: str
    nbytes: int
    total_allocated: int
    """On the device, after this event."""
    total_reserved: int


class OutOfMemory(NamedTuple):
    """An allocator ran out of memory."""

    start: int
    thread: int
    scope: Scope


class Parameter(NamedTuple):
    """A parameter as the profiler's Python tracer found it on the *first* call of its owner.

    The tracer keeps what it saw then: it misses a gradient that is replaced later.
    """

    name: str
    storage: Storage | None
    gradient: Storage | None
    state: tuple[tuple[str, Storage], ...] = ()
    """Of an optimizer: its tensors for this parameter."""


@dataclass(frozen=True, slots=True, eq=False)
class Owner:
    """A module or an optimizer; all calls of one object share one record."""

    is_optimizer: bool
    identity: int
    """Address of the Python object: distinguishes objects of one class within a trace."""
    name: str
    parameters: tuple[Parameter, ...]


class PythonCall(NamedTuple):
    """A call of a Python function, or of one written in C (``builtin``)."""

    start: int
    end: int
    thread: int
    scope: Scope
    name: str
    """``file(line): function`` with the function's first line, or ``<built-in function abs>``."""
    line: int
    """The line that calls, in the Python function around (:meth:`Trace.caller`)."""
    builtin: bool
    owner: Owner | None = None
    """The module whose call this is, with all that happens inside; or the optimizer whose step ends here: torch calls a
    function that does nothing, for the profiler to see, and what the step did comes before it."""


class Dispatched(NamedTuple):
    """A call of an operator as the dispatcher made it (:mod:`.dispatched`).

    Each of its tensors is a storage, or ``None`` for one that no operator of the trace took at any time.
    """

    name: str
    """With its overload: ``aten::mul.Tensor``."""
    start: int
    inputs: tuple[Storage | None, ...]
    outputs: tuple[Storage | None, ...]


Event: TypeAlias = Operator | Allocation | OutOfMemory | PythonCall


def _region_order(region: Region) -> tuple[int, int]:
    return region.thread, region.start


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Everything that was read, and what is doubtful in it.

    ``events[i:stops[i]]`` is the subtree of event ``i``; ``parents[i]`` is -1 for a root.
    """

    events: tuple[Event, ...]
    parents: array[int]
    stops: array[int]
    storages: tuple[Storage, ...]
    regions: tuple[Region, ...] = ()
    """By thread, then by start."""
    main: int = 0
    """The first thread that opened a region: the program's own; 0 when none did."""
    threads: tuple[int, ...] = ()
    """The thread ids of the system, by our number."""
    missing: tuple[str, ...] = ()
    """Flags that this trace was recorded without, as ``profile_memory=True``."""
    notes: tuple[str, ...] = field(default=())
    shared_numbers: frozenset[int] = frozenset()
    """Tensor numbers of the profiler that stand for many tensors: those that began without memory."""
    dispatched: tuple[Dispatched, ...] | None = None
    """The calls of the dispatcher, in the order in which they ended; ``None`` if they were not requested."""
    gradients: tuple[Storage, ...] = ()
    """Gradients that were read from the objects themselves (:mod:`.witnesses`)."""
    states: tuple[Storage, ...] = ()
    """The state of optimizers, read in the same way."""
    modules: Mapping[int, str] = field(default_factory=dict)
    """Paths of modules that have a name, by :attr:`Owner.identity`: ``model.h.0.attn``."""

    def subtree(self, index: int) -> tuple[Event, ...]:
        """An event and everything inside it, depth first."""
        return self.events[index : self.stops[index]]

    def ancestors(self, index: int) -> Iterator[int]:
        """Indices of the events around an event, from the inside out."""
        index = self.parents[index]
        while index >= 0:
            yield index
            index = self.parents[index]

    def regions_at(self, time: int, thread: int) -> tuple[Region, ...]:
        """The regions that were open at a time, from the outside in.

        A thread without own regions works for the main one: autograd's threads do what ``backward()`` asks.
        """
        place = bisect_right(self.regions, (thread, time), key=_region_order) - 1
        if thread != self.main and (place < 0 or self.regions[place].thread != thread):
            thread = self.main
            place = bisect_right(self.regions, (thread, time), key=_region_order) - 1
        found = []
        while place >= 0 and self.regions[place].thread == thread:
            region = self.regions[place]
            if region.end > time:
                found.append(region)
            place = region.parent
        return tuple(reversed(found))

    def stack(self, index: int) -> Iterator[RawFrame]:
        """File, line and function of the Python functions that led to an event, from the inside out.

        The line is known for calls of functions. Operators of Python's syntax (``a * b``) are not calls: their line is
        0.
        """
        line = 0
        for place in (index, *self.ancestors(index)):
            event = self.events[place]
            if isinstance(event, PythonCall):
                if place != index and not event.builtin:
                    match = _FUNCTION.fullmatch(event.name)
                    if match is not None:
                        yield match[1], line, match[2]
                line = event.line

    def __str__(self) -> str:
        missing = f", recorded without {', '.join(self.missing)}" if self.missing else ""
        return (
            f"trace of {len(self.events)} events, {len(self.storages)} storages, {len(self.threads)} threads{missing}"
        )
