"""External state: everything that a function can reach besides what it creates, before and after a call.

A picture of it maps paths (``self.history``, ``counter['n']``) to what they hold: values, sizes of
containers, identities of storages. The difference of two pictures is what the call changed, and what no replay will
change again. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import collections
import functools
import logging
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cudamem_testing.graphs.rules import Rule
from cudamem_testing.graphs.sides import storage_reference
from cudamem_testing.model.sizes import count
from cudamem_testing.objects.names import key_text, name_of, tensor_name
from cudamem_testing.objects.torch_references import of_module
from cudamem_testing.safe_access import (
    class_dict,
    class_name,
    find_in_class,
    get,
    instance_dict,
    is_a,
    is_heap_type,
    is_one_of,
    is_value,
    items,
    mro,
    plain_text,
    plain_value,
    slots,
    type_name,
)
from cudamem_testing.torch_api.tensors import scripted

#: Most objects, and most items of one container, that are examined.
MOST_OBJECTS, MOST_ITEMS = 50_000, 2_000
_ITEMS = (list, tuple, collections.deque, dict, set)
_SEQUENCES: tuple[Any, ...] = (list, tuple, collections.deque)
_PARTIAL = ("func", "args", "keywords")
_WITH_FUNCTION = (types.MethodType, classmethod, staticmethod)
#: torch's own tables in a module, besides its tensors.
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
#: Types that are not examined. A logger caches which levels are on.
_OPAQUE = (types.ModuleType, type, types.FunctionType, types.MethodType, types.CodeType, logging.Logger)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: Methods that create an object.
_MAKERS = ("__new__", "__init__", "__post_init__")
Path = tuple[str, ...]
Named = dict[Path, tuple[StorageWeakRef, str]]


@dataclass(frozen=True, slots=True)
class SideEffect:
    """One change that a call made: ``path`` says where, ``text`` what happened."""

    rule: Rule
    path: Path
    text: str

    def __str__(self) -> str:
        return self.text


class ExternalState:
    """External state at one moment. It holds its objects until it is dropped, so that no id is reused."""

    def __init__(self, roots: Iterable[tuple[str, object]]) -> None:
        self.entries: dict[Path, tuple[str, Any, str]] = {}
        self.storages: set[StorageWeakRef] = set()
        self.devices: set[int] = set()
        self.on_card = False
        self.complete = True
        self.tensors: list[tuple[Path, torch.Tensor]] = []
        self._held: list[object] = []
        seen: set[int] = set()
        pending: list[tuple[Path, object]] = [*reversed([((name,), value) for name, value in roots])]
        while pending:
            path, value = pending.pop()
            self._held.append(value)
            self._note(path, value)
            if id(value) in seen or is_value(value) or is_a(value, torch.Tensor):
                continue
            if len(seen) >= MOST_OBJECTS:
                self.complete = False
                break
            seen.add(id(value))
            pending += [((*path, step), part) for step, part in _parts(value)][::-1]

    def _note(self, path: Path, value: Any) -> None:
        if is_a(value, torch.Tensor):
            reference = storage_reference(value)
            if reference is not None:
                self.storages.add(reference)
            self.tensors.append((path, value))
            self.on_card = self.on_card or value.is_cuda
            gradient = value.grad if value.is_leaf else None
            if gradient is not None:
                self._note((*path, ".grad"), gradient)
            self.entries[path] = ("tensor", reference, tensor_name(value).without_place)
        elif is_value(value):
            self.entries[path] = ("value", plain_value(value), key_text(value))
        elif is_a(value, random.Random):
            self.entries[path] = ("generator", random.Random.getstate(value), "")
        elif type(value) is _numpy_generator():
            self.entries[path] = ("generator", repr(value.bit_generator.state), "")
        elif (size := _size(value)) is not None:
            self.entries[path] = ("items", (id(type(value)), class_name(type(value)), size), count(size, "item"))
        else:
            self.entries[path] = ("object", id(value), name_of(value))
            if type(value) is torch.device:
                self.devices.add(id(value))

    def reference(self, path: Path) -> StorageWeakRef:
        """The storage of the tensor at a path."""
        found: StorageWeakRef = self.entries[path][1]
        return found

    def storages_by_name(self) -> Named:
        """The storage of every tensor, and a description of the tensor."""
        tensors = ((path, entry) for path, entry in self.entries.items() if entry[0] == "tensor")
        return {path: (entry[1], entry[2]) for path, entry in tensors if entry[1] is not None}

    def changes(self, later: ExternalState) -> list[SideEffect]:
        """What differs in a later picture; new or removed objects are not split into parts."""
        found: list[SideEffect] = []
        odd: set[Path] = set()
        for path in (*self.entries, *(path for path in later.entries if path not in self.entries)):
            before, after = self.entries.get(path), later.entries.get(path)
            if _same(before, after):
                continue
            if any(path[:size] in odd for size in range(1, len(path))) and (before is None or after is None):
                continue
            odd.add(path)
            if path[-1] != ".grad" or (before is not None and after is not None):
                found.append(_change(path, before, after))
        return found


def roots_of(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    is_project: Callable[[types.CodeType], bool],
) -> tuple[list[tuple[str, object]], list[types.CodeType]]:
    """What a function reaches by name: its arguments, the object it is a method of, closures, globals, defaults.

    Globals are followed into the project's functions that it names, and into the project's methods and hooks that
    reached objects have. Also returns the code objects of all of them, the function's own first.
    """
    roots: list[tuple[str, object]] = []
    codes: dict[types.CodeType, None] = {}
    bound: list[object] = []
    callee: object = function
    while True:
        if is_a(callee, functools.partial):
            inner, given, keywords = (functools.partial.__dict__[name].__get__(callee) for name in _PARTIAL)
            bound = [*given, *bound]
            roots += [(f"{plain_text(name)}=", value) for name, value in items(keywords)]
            callee = inner
        elif type(callee) is types.MethodType:
            bound = [callee.__self__, *bound]
            callee = callee.__func__
        elif is_a(callee, torch.nn.Module):
            own = get(instance_dict(callee), "forward")
            roots += [] if own is None else [("self", callee)]
            bound = bound if own is not None else [callee, *bound]
            callee = find_in_class(type(callee), "forward") if own is None else own
        elif type(method := find_in_class(type(callee), "__call__")) is types.FunctionType:
            bound, callee = [callee, *bound], method
        else:
            break
    names: tuple[str, ...] = ()
    pending: list[types.FunctionType] = []
    if type(callee) is types.FunctionType:
        names = callee.__code__.co_varnames[: callee.__code__.co_argcount]
        pending = [callee]
    given = [*bound, *args]
    roots = [(names[at] if at < len(names) else f"args[{at}]", value) for at, value in enumerate(given)] + roots
    roots = [*kwargs.items(), *roots]
    roots += _reached(pending, codes, is_project)
    looked: set[int] = set()
    for _, value in roots:  # what methods reach is added at the end
        if id(value) not in looked:
            looked.add(id(value))
            for one in _behaviour(value):
                inner = _behind(one)
                if type(inner) is types.FunctionType and is_project(inner.__code__):
                    roots += [(type_name(one.__self__), one.__self__)] if type(one) is types.MethodType else []
                    roots += _reached([inner], codes, is_project)
                    roots += _fields(type(value)) if one is inner else []
    return roots, [*codes]


def _behind(one: Any) -> object:
    """The function of a property, a method, a class method or a static method; anything else unchanged."""
    if type(one) is property:
        return one.fget
    return one.__func__ if type(one) in _WITH_FUNCTION else one


def _fields(cls: type) -> list[tuple[str, object]]:
    """Plain values that a class has for all its instances."""
    found = [(f"{class_name(cls)}.{name}", value) for name, value in _own(cls) if not name.startswith("__")]
    return [(name, value) for name, value in found if is_value(value) or is_one_of(value, *_ITEMS)]


def _own(cls: type) -> list[tuple[str, Any]]:
    """A class's own attributes, by name."""
    return [(name, value) for name, value in tuple(class_dict(cls).items()) if type(name) is str]


def _behaviour(value: object) -> list[object]:
    """Functions that belong to an object: its methods, and for a module the methods and hooks of all its parts."""
    if is_value(value) or is_one_of(value, torch.Tensor, *_ITEMS, type):
        return []
    parts = [*value.modules()] if is_a(value, torch.nn.Module) else [value]
    found: list[object] = []
    for part in parts:
        fields = instance_dict(part)
        if is_a(part, torch.nn.Module):
            found += [hook for table in _HOOKS for _, hook in _items(get(fields, table))]
            own = get(fields, "forward")
            found += [] if own is None else [own]
    for cls in {id(type(part)): type(part) for part in parts}.values():
        for base in mro(cls) if is_heap_type(cls) else ():
            found += [one for name, one in _own(base) if name not in _MAKERS]
    return found


def _numpy_generator() -> Any:
    """NumPy's generator class, ``None`` if NumPy is not loaded."""
    return get(instance_dict(sys.modules.get("numpy.random")), "Generator")


def random_state() -> tuple[object, object]:
    """States of Python's and NumPy's generators; equal only if no number was drawn between two calls."""
    numpy = sys.modules.get("numpy")
    legacy: Any = numpy.random.get_state(legacy=True) if numpy is not None and hasattr(numpy, "random") else None
    return random.getstate(), None if legacy is None else (legacy[2], legacy[1].tobytes())


def _reached(
    functions: Sequence[types.FunctionType],
    codes: dict[types.CodeType, None],
    is_project: Callable[[types.CodeType], bool],
) -> Iterator[tuple[str, object]]:
    """Closures, defaults and globals of a function, and of the project's functions among them."""
    pending, told = [*functions], set()
    while pending:
        one = pending.pop()
        if one.__code__ in codes:
            continue
        nested = [one.__code__]
        while nested:
            code = nested.pop()
            codes[code] = None
            nested += [part for part in code.co_consts if type(part) is types.CodeType]
            for name in code.co_names:
                value = dict.get(one.__globals__, name)
                if type(value) is types.FunctionType:
                    pending += [value] if is_project(value.__code__) else []
                elif value is not None and not is_one_of(value, types.ModuleType, type) and name not in told:
                    told.add(name)
                    yield name, value
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if type(value) is types.FunctionType and is_project(value.__code__):
                pending.append(value)
            else:
                yield name, value
        for number, value in enumerate(one.__defaults__ or ()):
            if not is_value(value):
                yield one.__code__.co_varnames[one.__code__.co_argcount - len(one.__defaults__ or ()) + number], value


def _parts(value: object) -> list[tuple[str, object]]:
    if is_a(value, dict):
        return [(f"[{key_text(key)}]", part) for key, part in items(value)[:MOST_ITEMS]]
    for base in _SEQUENCES:
        if is_a(value, base):
            return [(f"[{at}]", part) for at, part in enumerate([*base.__iter__(value)][:MOST_ITEMS])]
    if is_one_of(value, *_OPAQUE, set):
        return []
    fields = [(name, part) for name, part in items(instance_dict(value) or {}) if type(name) is str]
    named = dict(fields)
    if is_a(value, torch.nn.Module):
        tables = [_items(named.get(table)) for table in _MODULE_TABLES]
        own = [(f".{plain_text(name)}", part) for table in tables for name, part in table]
        own += [(of_module(*names), part) for names, part in scripted(named.get("_c"))]
        return own + [(f".{name}", part) for name, part in fields if not name.startswith("_")]
    if is_a(value, torch.optim.Optimizer):
        states = [state for _, state in _items(named.get("state"))]
        return [(".state", states), (".param_groups", named.get("param_groups"))]
    members = slots(value) if is_heap_type(type(value)) else ()
    return [(f".{name}", part) for name, part in (*fields, *members)]


def _items(table: object) -> tuple[tuple[Any, Any], ...]:
    """Items of a dict; empty for what a TorchScript module has instead."""
    return items(table) if is_a(table, dict) else ()


def _size(value: object) -> int | None:
    """The number of items of a container; ``None`` for anything else."""
    base: Any = next((base for base in _ITEMS if is_a(value, base)), None)
    return None if base is None else int(base.__len__(value))


def _same(before: tuple[str, Any, str] | None, after: tuple[str, Any, str] | None) -> bool:
    if before is None or after is None or before[0] != after[0]:
        return before is after
    equal: bool = before[1] == after[1]
    return equal or (before[1] != before[1] and after[1] != after[1])  # both NaN


def _change(path: Path, before: tuple[str, Any, str] | None, after: tuple[str, Any, str] | None) -> SideEffect:
    name = "".join(path)
    if before is not None and before[0] == "tensor":
        now = "is gone" if after is None else f"is another tensor now: {after[2]}" if after[0] == "tensor" else ""
        return SideEffect(
            Rule.OUTSIDE, path, f"{name} {now or f'was a tensor, and is {after[2] if after else None} now'}"
        )
    if before is not None and after is not None and before[0] == after[0] == "generator":
        return SideEffect(Rule.GENERATOR, path, f"numbers of {name}, drawn during the capture only")
    if before is None:
        return SideEffect(Rule.SIDE_EFFECT, path, f"{name} is new: {after[2] if after else None}")
    if after is None:
        return SideEffect(Rule.SIDE_EFFECT, path, f"{name} is gone")
    if before[0] == after[0] == "items":
        (kind, was, size), (other, now, _) = before[1], after[1]
        if kind != other:
            return SideEffect(Rule.SIDE_EFFECT, path, f"{name} was a {was}, and is a {now} now")
        return SideEffect(Rule.SIDE_EFFECT, path, f"{name} went from {size} to {after[2]}")
    return SideEffect(Rule.SIDE_EFFECT, path, f"{name} went from {before[2]} to {after[2]}")
