"""Names for tensors in a trace, by address.

A trace has storages, not variables. Tensors that a caller names are recorded as addresses while they live; when the
trace is read the addresses become storages. Several storages may have had one address, one after the other: a tensor
from before the recording is the first of them, one that lives at its end the last.

Containers are searched without running code of their classes; parameters of modules are named as in
``named_parameters()``. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

from cudamem_testing import safe_access
from cudamem_testing.objects.tensors import is_module, is_tensor, storage_of
from cudamem_testing.torch_api.tensors import grad, quiet
from cudamem_testing.trace.graph import Name
from cudamem_testing.trace.records import Allocation, Storage, Trace


class Address(NamedTuple):
    """Where a named tensor's storage lies; ``place`` is ``None`` for a tensor without one."""

    text: str
    place: tuple[str, int] | None
    given: bool
    """Whether the tensor existed before the recording began."""


def named_tensors(name: str, value: object) -> Iterator[tuple[str, Any]]:
    """Every tensor in a value: itself, in lists, tuples and dicts however deep, and the parameters of modules.

    ``x``, ``xs[0]``, ``batch.mask``, ``model.layers.0.weight``; the items of a dict without a name are called by its
    keys. Of a tensor that only wraps others (``NestedTensor``) those are named, by its attributes: ``x._values``.
    """
    pending: list[tuple[str, object]] = [(name, value)]
    seen: set[int] = set()
    while pending:
        name, value = pending.pop()
        kind = type(value)
        if is_tensor(value):
            wrapped = _wrapped(value)
            if not wrapped:
                yield name, value
            elif id(value) not in seen:
                seen.add(id(value))
                pending.extend((_joined(name, attribute), part) for attribute, part in reversed(wrapped))
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        parts: Iterable[tuple[str, object]] = ()
        if issubclass(kind, dict):
            items: Iterable[tuple[object, object]] = dict.items(cast("dict[object, object]", value))
            parts = [(_joined(name, str(key)), part) for key, part in items if type(key) in (str, int)]
        elif issubclass(kind, list):
            parts = _numbered(name, list.__iter__(cast("list[object]", value)))
        elif issubclass(kind, tuple):
            parts = _numbered(name, tuple.__iter__(cast("tuple[object, ...]", value)))
        elif is_module(value):
            fields: dict[str, dict[str, object]] = object.__getattribute__(value, "__dict__")
            tables = (fields.get(table) or {} for table in ("_parameters", "_modules"))
            parts = [(_joined(name, key), part) for table in tables for key, part in dict.items(table)]
        pending.extend(reversed(list(parts)))


def named_modules(name: str, value: object) -> dict[int, str]:
    """The modules in a value by the addresses of their objects: ``model``, ``model.h.0.attn``."""
    found: dict[int, str] = {}
    pending: list[tuple[str, object]] = [(name, value)]
    while pending:
        name, value = pending.pop()
        if not is_module(value) or id(value) in found:
            continue
        found[id(value)] = name
        fields: dict[str, dict[str, object]] = object.__getattribute__(value, "__dict__")
        parts = [(_joined(name, key), part) for key, part in dict.items(fields.get("_modules") or {})]
        pending.extend(reversed(parts))
    return found


def addresses(name: str, value: object, *, given: bool = False) -> list[Address]:
    """The addresses of every tensor in a value."""
    return [Address(text, _place(tensor), given) for text, tensor in named_tensors(name, value)]


def gradient_of(tensor: object) -> object:
    """The current gradient of a tensor; ``None`` without one, and for a tensor that was freed."""
    with quiet():
        return None if tensor is None else grad(tensor)


def with_gradients(addressed: Iterable[Address], tensors: Iterable[Any]) -> Iterator[Address]:
    """The addresses, each followed by that of its tensor's current gradient, if there is one."""
    for address, tensor in zip(addressed, tensors, strict=True):
        yield address
        gradient = gradient_of(tensor)
        if gradient is not None:
            yield Address(f"{address.text}.grad", _place(gradient), False)


def with_results(trace: Trace, addressed: Iterable[Address]) -> Trace:
    """The trace, in which tensors named at the end have storages too when no operator took them.

    The profiler numbers tensors when an operator is called with them, so it knows only the memory of the last results
    of a program. They get the numbers after the profiler's.
    """
    wanted = {address.place for address in addressed if not address.given}
    events, storages = list(trace.events), list(trace.storages)
    number = max((storage.number for storage in storages), default=-1)
    allocation = max((storage.allocation for storage in storages), default=-1)
    for index in range(len(events) - 1, -1, -1):
        event = events[index]
        if isinstance(event, Allocation) and (event.device, event.pointer) in wanted:
            wanted.remove((event.device, event.pointer))
            if event.nbytes > 0 and event.storage is None:
                number, allocation = number + 1, allocation + 1
                found = Storage(len(storages), number, allocation, event.pointer, event.device, event.nbytes, True)
                storages.append(found)
                events[index] = event._replace(storage=found)
    return replace(trace, events=tuple(events), storages=tuple(storages))


def resolve(addressed: Iterable[Address], trace: Trace) -> tuple[Name, ...]:
    """The storages at the addresses; those that the trace does not make existed before, even if named at the end."""
    made = {event.storage for event in trace.events if isinstance(event, Allocation) and event.nbytes > 0}
    by_place: dict[tuple[str, int], list[Storage]] = {}
    for known in sorted(trace.storages, key=lambda storage: storage.allocation):
        by_place.setdefault((known.device, known.pointer), []).append(known)
    names = []
    for address in addressed:
        found = by_place.get(address.place) if address.place is not None else None
        storage = None if not found else found[0] if address.given else found[-1]
        names.append(Name(address.text, storage, address.given or (storage is not None and storage not in made)))
    return tuple(names)


def places_of(tensors: Iterable[object], *, given: bool = False) -> list[Address]:
    """The addresses of tensors that need no name."""
    return [Address("", _place(tensor), given) for tensor in tensors]


def storages_of(addressed: Iterable[Address], trace: Trace) -> tuple[Storage, ...]:
    """The storages at some addresses."""
    return tuple(dict.fromkeys(name.storage for name in resolve(addressed, trace) if name.storage is not None))


def _wrapped(tensor: object) -> list[tuple[str, object]]:
    """The tensors in the attributes of one that has no memory of its own."""
    if storage_of(tensor) is not None:
        return []
    return [
        (name, value) for name, value in safe_access.items(safe_access.instance_dict(tensor) or {}) if is_tensor(value)
    ]


def _place(tensor: object) -> tuple[str, int] | None:
    storage = storage_of(tensor)
    return None if storage is None else (storage.device, storage.address)


def _numbered(name: str, parts: Iterable[object]) -> Iterator[tuple[str, object]]:
    return ((f"{name}[{place}]", part) for place, part in enumerate(parts))


def _joined(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part
