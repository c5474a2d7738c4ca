"""Profiler events made by hand, for traces that no program can be made to produce.

``tree(op("aten::mul", x, children=[alloc(x, 16)]))`` numbers the start times in depth-first order; an event with a time
of its own (``start=``) keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cudamem_testing.torch_api.profiler import EventTypes
from cudamem_testing.trace.reader import read_events
from cudamem_testing.trace.records import Trace

ROLES = ("FUNCTION", "BACKWARD_FUNCTION", "USER_SCOPE")


@dataclass(frozen=True)
class Role:
    name: str

    def __int__(self) -> int:
        return ROLES.index(self.name)


@dataclass
class Tensor:
    """What the profiler recorded of a tensor."""

    allocation_id: int | None
    id: int | None = None
    storage_data_ptr: int | None = None
    impl_ptr: int = 1
    sizes: list[int] = field(default_factory=lambda: [4])
    strides: list[int] = field(default_factory=lambda: [1])
    dtype: torch.dtype = torch.float32
    layout: torch.layout = torch.strided
    device: torch.device = torch.device("cpu")


def tensor(number: int | None, **fields: Any) -> Tensor:
    """A tensor whose numbers follow from one."""
    return Tensor(**{"allocation_id": number, "id": number, "storage_data_ptr": 4096 + (number or 0), **fields})


@dataclass
class OperatorFields:
    name: str
    inputs: list[Any]
    scope: Role
    sequence_number: int


@dataclass
class AllocationFields:
    ptr: int
    id: int | None
    allocation_id: int | None
    alloc_size: int
    device: torch.device
    total_allocated: int = 0
    total_reserved: int = 0


@dataclass
class Frame:
    file_name: str = "model.py"
    line_number: int = 1
    function_name: str = "f"


@dataclass
class Module:
    self_ptr: int
    cls_name: str
    parameters: list[tuple[str, Tensor, Tensor | None]]


@dataclass
class Optimizer:
    self_ptr: int
    parameters: list[tuple[Tensor, Tensor | None, list[tuple[str, Tensor]]]]


@dataclass
class CallFields:
    callsite: Frame
    caller: Frame
    module: Module | None = None
    optimizer: Optimizer | None = None


@dataclass
class BuiltinFields:
    caller: Frame


class OutOfMemoryFields:
    pass


class KinetoFields:
    pass


TYPES = EventTypes(OperatorFields, AllocationFields, OutOfMemoryFields, CallFields, BuiltinFields, Tensor)


class Event:
    """A node of the tree."""

    def __init__(
        self, name: str, fields: Any, children: Iterable[Event] = (), start: int = -1, end: int = -1, tid: int = 7
    ) -> None:
        self._name = name
        self.extra_fields = fields
        self._children = list(children)
        self.start_time_ns = start
        self.end_time_ns = end
        self.start_tid = tid

    @property
    def name(self) -> str:
        if self._name == "(raises)":
            raise UnicodeDecodeError("utf-8", b"\xb0", 0, 1, "invalid start byte")
        return self._name

    @property
    def children(self) -> list[Event]:
        return list(self._children)


def op(
    name: str, *inputs: Any, children: Iterable[Event] = (), role: str = "FUNCTION", sequence: int = -1, **times: int
) -> Event:
    """A call of an operator, an annotation or a backward function."""
    return Event(name, OperatorFields(name, list(inputs), Role(role), sequence), children, **times)


def alloc(of: Tensor | None, nbytes: int, *, pointer: int = 4096, **times: int) -> Event:
    """Memory given out, or taken back when ``nbytes`` is negative."""
    if of is None:
        fields = AllocationFields(pointer, None, None, nbytes, torch.device("cpu"))
    else:
        fields = AllocationFields(of.storage_data_ptr or 0, of.id, of.allocation_id, nbytes, of.device)
    return Event("[memory]", fields, **times)


def call(
    name: str,
    *children: Event,
    line: int = 0,
    module: Module | None = None,
    optimizer: Optimizer | None = None,
    **times: int,
) -> Event:
    """A call of a Python function, spelt ``file(line): function``."""
    return Event(name, CallFields(Frame(), Frame(line_number=line), module, optimizer), children, **times)


def builtin(name: str, *children: Event, line: int = 0, **times: int) -> Event:
    """A call of a function that is not written in Python."""
    return Event(name, BuiltinFields(Frame(line_number=line)), children, **times)


def other(*children: Event, **times: int) -> Event:
    """An event that says nothing about memory."""
    return Event("kernel", KinetoFields(), children, **times)


def out_of_memory(**times: int) -> Event:
    """An allocator's refusal."""
    return Event("[OutOfMemory]", OutOfMemoryFields(), **times)


def tree(*roots: Event) -> Sequence[Event]:
    """The events with times: depth first, ends after everything inside."""
    clock = 0
    stack: list[tuple[Event, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        event, done = stack.pop()
        clock += 1
        if done:
            event.end_time_ns = clock if event.end_time_ns < 0 else event.end_time_ns
            continue
        event.start_time_ns = clock if event.start_time_ns < 0 else event.start_time_ns
        stack.append((event, True))
        stack.extend((child, False) for child in reversed(event._children))
    return roots


def read(*roots: Event) -> Trace:
    """The trace of a forest."""
    return read_events(tree(*roots), TYPES)
