"""The reader: one pass over the profiler's event tree that reads each field of each event once.

The profiler hands out its events as C++ objects; each attribute read crosses into C++ and builds a new Python object,
0.3 to 2 microseconds each. This limits the speed of all that uses a profile, not the analysis. So the reader

* goes down the tree once, with its own stack (deep models would exhaust Python's), in depth-first order;
* distinguishes events by the class of their fields and skips what follows from the class: an allocation has no
  children, a call with a known :class:`~.records.Signature` has the same role;
* finds a tensor's storage by its allocation number, which is unique in a trace, and reads the rest (address, device,
  extent) only until an event of the allocator shows the size;
* passes the scopes down (:class:`~.records.Scope`): modules and backward functions;
* makes plain tuples, so that the profiler's result can be dropped.

Tensors without memory (no elements, meta, sparse) have no address and therefore no storage; for the schemas they are
arguments that were not recorded. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, cast

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.torch_api.profiler import EventTypes, dtype_name, event_types, strided_bytes
from cudamem_testing.trace.records import (
    Allocation,
    Argument,
    Event,
    Operator,
    OutOfMemory,
    Owner,
    Parameter,
    PythonCall,
    Region,
    Scope,
    ScopeKind,
    Signature,
    Storage,
    Trace,
)

_RESHAPERS = frozenset({"aten::resize_", "aten::resize_as_", "aten::as_strided_", "aten::set_"})
_NOTHING = type(None)
_UNRECORDED = (bool, int, float, complex, str, _NOTHING)


def read_events(roots: Sequence[Any], types: EventTypes | None = None, missing: Iterable[str] = ()) -> Trace:
    """Read a forest of profiler events.

    Events of kinds that say nothing about memory are left out; their children belong to the next event above that is
    kept.

    Args:
        roots: what ``experimental_event_tree()`` returned.
        types: the classes of events; by default those of the installed torch.
        missing: flags that the profile was recorded without, kept in the trace.
    """
    reader = _Reader(types or event_types())
    with CollectorPaused():
        reader.read(roots)
        return reader.finish(tuple(missing))


class _Reader:
    """The state of one pass."""

    def __init__(self, types: EventTypes) -> None:
        self._types = types
        self._events: list[Event] = []
        self._parents: array[int] = array("q")
        self._storages = _Storages()
        self._annotations: list[int] = []
        self._owners: dict[int, Owner] = {}
        self._signatures: dict[tuple[str, tuple[type, ...]], Signature] = {}
        self._roles: dict[int, str] = {}
        self._threads: dict[int, Scope] = {}
        self._thread_numbers: dict[int, int] = {}
        self._texts: dict[str, str] = {}

    def read(self, roots: Sequence[Any]) -> None:
        """Go down the tree. The stack holds what is still to be visited, with what it inherits."""
        types, events, parents = self._types, self._events, self._parents
        operator, allocation, python, builtin = (
            types.operator,
            types.allocation,
            types.python_call,
            types.builtin_call,
        )
        number_of, storages = self._thread_numbers, self._storages
        record = tuple.__new__  # what the records' own constructors call, in half the time
        stack: list[tuple[Any, int, Scope]] = [(root, -1, self._thread(root.start_tid)) for root in roots][::-1]
        while stack:
            event, parent, scope = stack.pop()
            fields = event.extra_fields
            kind = type(fields)
            index = len(events)
            thread = number_of[tid] if (tid := event.start_tid) in number_of else self._thread_number(tid)
            if kind is allocation:
                events.append(storages.allocation(fields, event.start_time_ns, thread, scope))
                parents.append(parent)
                continue
            if kind is operator:
                start = event.start_time_ns
                arguments, signature = self._call(fields, start)
                if signature.role != "FUNCTION":
                    if signature.backward:
                        scope = Scope(ScopeKind.BACKWARD, signature.name, scope, index, True)
                    elif signature.region:
                        self._annotations.append(index)
                end, sequence = event.end_time_ns, fields.sequence_number
                events.append(record(Operator, (start, end, thread, scope, signature, arguments, sequence)))
            elif kind is python or kind is builtin:
                start = event.start_time_ns
                owner = None if kind is builtin else self._owner(fields, start)
                if owner is not None and not owner.is_optimizer:
                    scope = Scope(ScopeKind.MODULE, owner.name, scope, index, scope.backward)
                name, line = self._text(_python_name(event, fields, owner)), fields.caller.line_number
                end = event.end_time_ns
                events.append(record(PythonCall, (start, end, thread, scope, name, line, kind is builtin, owner)))
            elif kind is types.out_of_memory:
                events.append(OutOfMemory(event.start_time_ns, thread, scope))
            else:
                stack.extend((child, parent, scope) for child in reversed(event.children))
                continue
            parents.append(parent)
            children = event.children
            if children:
                children.reverse()
                stack.extend([(child, index, scope) for child in children])

    def finish(self, missing: tuple[str, ...]) -> Trace:
        """The trace; the end of each subtree is found in a pass from the last event to the first."""
        stops = array("q", range(1, len(self._events) + 1))
        for index in range(len(stops) - 1, -1, -1):
            parent = self._parents[index]
            if parent >= 0 and stops[parent] < stops[index]:
                stops[parent] = stops[index]
        notes = list(self._storages.notes)
        if refusals := sum(type(event) is OutOfMemory for event in self._events):
            notes.append(f"an allocator ran out of memory {refusals} times")
        if unseen := self._storages.unseen_frees:
            notes.append(f"{unseen} frees were not recorded: of other threads, or of memory from before the recording")
        return Trace(
            tuple(self._events),
            self._parents,
            stops,
            tuple(self._storages.found),
            regions := self._regions(),
            min((region.thread for region in regions), default=0),
            tuple(self._thread_numbers),
            missing,
            tuple(notes),
            frozenset(self._storages.shared_numbers),
        )

    def _regions(self) -> tuple[Region, ...]:
        """The spans of the annotations; each began in the last one of its thread that is still open."""
        calls = [(index, event) for index in self._annotations if isinstance(event := self._events[index], Operator)]
        calls.sort(key=lambda call: (call[1].thread, call[1].start))
        regions: list[Region] = []
        open_: list[int] = []
        for index, event in calls:
            while open_ and (regions[open_[-1]].end <= event.start or regions[open_[-1]].thread != event.thread):
                open_.pop()
            parent = open_[-1] if open_ else -1
            open_.append(len(regions))
            regions.append(Region(event.name, event.start, event.end, event.thread, parent, index))
        return tuple(regions)

    def _call(self, fields: Any, start: int) -> tuple[tuple[Argument, ...], Signature]:
        """The storages an operator was called with, and its signature."""
        inputs = fields.inputs
        types = tuple(map(type, inputs))
        name = fields.name
        signature = (self._signatures.get((name, types)) if types else None) or self._signature(
            name, types, fields.scope
        )
        if not signature.places:
            return (), signature
        settled, storage_of, tensor = self._storages.settled, self._storages.of, self._types.tensor
        arguments: list[Argument | None] = []
        numbered = True
        for place in signature.places:
            value = inputs[place]
            if types[place] is tensor:
                storage = settled.get(value.allocation_id) or storage_of(value, start)
                numbered = numbered and storage is not None
                arguments.append(storage)
            else:
                found = [settled.get(item.allocation_id) or storage_of(item, start) for item in value]
                numbered = numbered and None not in found
                arguments.append(tuple([storage for storage in found if storage is not None]))
        if not numbered:
            return self._unnumbered(signature, arguments, inputs, fields.scope)
        return cast("tuple[Argument, ...]", tuple(arguments)), signature

    def _unnumbered(
        self, signature: Signature, arguments: list[Argument | None], inputs: list[Any], scope: Any
    ) -> tuple[tuple[Argument, ...], Signature]:
        """A call with tensors that the profiler did not number: they count as not recorded."""
        types = list(signature.types)
        kept: list[Argument] = []
        for place, argument in zip(signature.places, arguments, strict=True):
            if argument is None:
                types[place] = _NOTHING
            elif isinstance(argument, tuple) and len(argument) < len(inputs[place]):
                types[place] = object  # a list of other objects fits no schema
                kept.append(argument)
            else:
                kept.append(argument)
        return tuple(kept), self._signature(signature.name, tuple(types), scope)

    def _signature(self, name: str, types: tuple[type, ...], scope: Any) -> Signature:
        """The signature of a call; one without arguments differs by role, because its name is not enough."""
        number = int(scope)
        role = self._roles.get(number) or self._roles.setdefault(number, str(scope.name))
        key = (name, types) if types else (f"{role} {name}", types)
        known = self._signatures.get(key)
        if known is None:
            tensor = self._types.tensor
            spelt = tuple(Storage if kind is tensor else kind for kind in types)
            places = tuple(place for place, kind in enumerate(spelt) if kind not in _UNRECORDED)
            known = self._signatures[key] = Signature(self._text(name), spelt, places, role)
            if name in _RESHAPERS:
                self._storages.look_again = True
        return known

    def _owner(self, fields: Any, start: int) -> Owner | None:
        """The module or optimizer of a Python call.

        The profiler gives storages only to the first record of an object. Which one that is shows only when a storage
        appears, so an owner is read again until one does.
        """
        if (module := fields.module) is not None:
            identity = module.self_ptr
            known = self._owners.get(identity)
            if known is None or not _resolved(known):
                parameters = tuple(
                    Parameter(self._text(name), self._known(tensor, start), self._known(gradient, start))
                    for name, tensor, gradient in module.parameters
                )
                known = Owner(False, identity, self._text(module.cls_name), parameters)
                self._owners[identity] = known
            return known
        if (optimizer := fields.optimizer) is not None:
            identity = optimizer.self_ptr
            known = self._owners.get(identity)
            if known is None or not _resolved(known):
                parameters = tuple(
                    Parameter(
                        str(place),
                        self._known(tensor, start),
                        self._known(gradient, start),
                        tuple(
                            (self._text(name), storage)
                            for name, value in state
                            if (storage := self._known(value, start)) is not None
                        ),
                    )
                    for place, (tensor, gradient, state) in enumerate(optimizer.parameters)
                )
                known = Owner(True, identity, "optimizer", parameters)
                self._owners[identity] = known
            return known
        return None

    def _known(self, tensor: Any, start: int) -> Storage | None:
        return None if tensor is None else self._storages.of(tensor, start)

    def _thread_number(self, tid: int) -> int:
        return self._thread_numbers.setdefault(tid, len(self._thread_numbers))

    def _thread(self, tid: int) -> Scope:
        """The outermost scope of a thread."""
        scope = self._threads.get(tid)
        if scope is None:
            scope = self._threads[tid] = Scope(ScopeKind.THREAD, f"thread {self._thread_number(tid)}", None, -1)
        return scope

    def _text(self, text: str) -> str:
        """One object for equal texts: a trace repeats few names very often."""
        return self._texts.setdefault(text, text)


class _Storages:
    """The storages so far, and their sizes as far as they are known.

    Events of the allocator have the size of what it gives out or takes back. A storage that exists before and after the
    recording has none, so its tensors are measured: each tensor object once (``impl_ptr``), as most of them are
    parameters, which appear again and again. Another object at the same address can only be a view, which is not larger
    than its base; after an operator that enlarges a tensor in place all are measured again (``look_again``).

    The profiler misses frees: those of other threads, and on the CPU those of what was allocated before the recording.
    The next tensor at the address then gets the same number. Memory that is given out after the number was first seen
    is therefore another storage.

    The profiler sees one address for all tensors without memory, so tensors that begin empty and grow
    (``torch.arange``, on a card an embedding) share one tensor number (``shared_numbers``).
    """

    def __init__(self) -> None:
        self.found: list[Storage] = []
        self.notes: list[str] = []
        self.settled: dict[int | None, Storage] = {}
        """By allocation number, those whose size is final and whose type is known."""
        self.shared_numbers: set[int] = set()
        self.look_again = False
        self.unseen_frees = 0
        self._by_allocation: dict[int, Storage] = {}
        self._since: list[int] = []
        self._measured: set[tuple[int, int]] = set()

    def of(self, tensor: Any, start: int) -> Storage | None:
        """The storage of a tensor met at a time; ``None`` when the profiler could not number it."""
        allocation = tensor.allocation_id
        storage = self._by_allocation.get(allocation)
        if storage is None:
            pointer = tensor.storage_data_ptr
            if allocation is None or tensor.id is None:
                return None
            if not pointer:
                self.shared_numbers.add(tensor.id)
                return None
            storage = self._add(tensor.id, allocation, pointer, str(tensor.device), start)
        if storage.dtype is None:
            storage.dtype = dtype_name(tensor)
        if storage.measured:
            self.settled[allocation] = storage
            return storage
        seen = (allocation, tensor.impl_ptr)
        if self.look_again or seen not in self._measured:
            self._measured.add(seen)
            storage.nbytes = max(storage.nbytes, strided_bytes(tensor))
        return storage

    def allocation(self, fields: Any, start: int, thread: int, scope: Scope) -> Allocation:
        """The record of an allocator's event; its size of a storage is final."""
        nbytes, pointer, allocation = fields.alloc_size, fields.ptr, fields.allocation_id
        storage = self._by_allocation.get(allocation)
        if storage is not None and nbytes > 0 and start > self._since[storage.index]:
            self.unseen_frees += 1
            storage = None
        if storage is None:
            device = str(fields.device)
            if allocation is not None and fields.id is not None:
                storage = self._add(fields.id, allocation, pointer, device, start)
        else:
            device = storage.device
        if storage is not None:
            if not storage.measured:
                storage.nbytes, storage.measured = abs(nbytes), True
                if storage.dtype is not None:
                    self.settled[allocation] = storage
                else:
                    self.settled.pop(allocation, None)  # the earlier storage at the address
            elif storage.nbytes != abs(nbytes):
                self.notes.append(
                    f"storage {storage.index} ({device}) was {storage.nbytes} bytes long, then {abs(nbytes)}"
                )
        return Allocation(
            start, thread, scope, storage, pointer, device, nbytes, fields.total_allocated, fields.total_reserved
        )

    def _add(self, number: int, allocation: int, pointer: int, device: str, start: int) -> Storage:
        storage = Storage(len(self.found), number, allocation, pointer, device)
        self.found.append(storage)
        self._since.append(start)
        self._by_allocation[allocation] = storage
        return storage


def _python_name(event: Any, fields: Any, owner: Owner | None) -> str:
    """A Python function as the profiler spells those that are no module's: ``model.py(12): forward``.

    The profiler points at a function's name without keeping it alive: for code that was freed, such as the body of a
    module that was imported meanwhile, it reads what is at that address now.
    """
    try:
        if owner is None:
            return str(event.name)
        frame = fields.callsite
        return f"{frame.file_name}({frame.line_number}): {frame.function_name}"
    except UnicodeDecodeError:
        return "(unreadable)"


def _resolved(owner: Owner) -> bool:
    return any(parameter.storage is not None for parameter in owner.parameters)
