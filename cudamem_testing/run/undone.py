"""Finds what wider fixtures undo at their end: names that their teardown mentions, and what they patched.

A fixture of a module that replaces ``lib.CACHE`` restores the old value when it ends. What tests add to the new one
lives until then, and belongs to the fixture. Whether its end really frees that is judged then (run/entrusted.py).
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import _GeneratorContextManager
from typing import Any
from unittest import mock

from cudamem_testing import safe_access
from cudamem_testing.model.stacks import is_library
from cudamem_testing.safe_access import referents

_NAMING = frozenset(
    f"{verb}_{kind}" for verb in ("LOAD", "STORE", "DELETE") for kind in ("ATTR", "GLOBAL", "NAME", "METHOD", "CONST")
)
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_ADDING = frozenset({"append", "appendleft", "add", "extend", "insert", "setdefault"})
_PATCH: Any = mock._patch
_PATCH_DICT: Any = mock._patch_dict
_EXIT_STACKS: tuple[Any, ...] = (contextlib.ExitStack, contextlib.AsyncExitStack)
_DEPTH = 4
#: Functions of the project that one teardown may lead to.
_MOST = 50
#: Objects of these helpers are searched for patches.
_MONKEYPATCH = "_pytest.monkeypatch"
_HELPERS = ("pytest_mock.", _MONKEYPATCH)


def names_undone(finalizers: Iterable[Any]) -> set[str]:
    """Attributes, globals and keys that the rest of a fixture's code mentions, or that its patches replaced.

    ``finalizers`` are what runs at its end. Functions of the project that this code calls count as part of it. A module
    that was put into ``sys.modules`` is ``module NAME``.
    """
    names: set[str] = set()
    read: set[types.CodeType] = set()
    for finalizer in [*finalizers]:
        names.update(_names(finalizer, _DEPTH, read))
    return names


def _names(obj: Any, depth: int, read: set[types.CodeType]) -> Iterator[str]:
    kind = type(obj)
    if kind is types.GeneratorType:
        if obj.gi_frame is not None:
            local = obj.gi_frame.f_locals
            yield from _mentioned(obj.gi_code, obj.gi_frame.f_lasti, obj.gi_frame.f_globals, local, depth, read)
            patches = referents(obj, obj.gi_frame)
            yield from _patched(patches, depth, read)
            if any(type(_bound_to(one)) is _PATCH_DICT for one in patches):  # it restores the whole dictionary
                yield from _mentioned(obj.gi_code, -1, {}, {}, 0, read)
            for name, value in local.items():
                if name.startswith(("teardown", "tearDown")):  # of a module or class, which pytest calls
                    yield from _names(value, depth - 1, read)
    elif kind is functools.partial:
        for argument in (obj.func, *obj.args, *obj.keywords.values()):
            if type(argument) is types.GeneratorType or argument is obj.func:
                yield from _names(argument, depth, read)
    elif kind is types.MethodType:
        yield from _names(obj.__func__, depth, read)
        yield from _patched([obj.__self__], depth, read)
    elif kind is types.FunctionType:
        cells = zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True)
        local = {name: cell.cell_contents for name, cell in cells if _is_full(cell)}
        yield from _mentioned(obj.__code__, -1, obj.__globals__, local, depth, read)
        yield from _patched([*local.values()], depth, read)


def _mentioned(
    code: types.CodeType,
    after: int,
    namespace: Mapping[str, Any],
    local: Mapping[str, Any],
    depth: int,
    read: set[types.CodeType],
) -> Iterator[str]:
    """Names and texts in the code behind an instruction, and in functions of the project that it takes from variables,
    modules, classes and objects. What is only added to is not undone.
    """
    value: Any = None
    pending: str | None = None  # until it shows whether something is added to it
    for instruction in dis.get_instructions(code):
        if instruction.offset <= after:
            continue
        name, named = instruction.argval, type(instruction.argval) is str
        is_added_to = named and instruction.opname in _ATTRIBUTES and name in _ADDING
        if pending is not None and not is_added_to:
            yield pending
        pending = name if named and instruction.opname in _NAMING and not is_added_to else None
        if not named:
            value = None
            continue
        if instruction.opname in _ATTRIBUTES:
            value = _attribute(value, name)
        else:
            value = local.get(name, namespace.get(name)) if instruction.opname.startswith("LOAD_") else None
        function = value.__func__ if type(value) in (types.MethodType, staticmethod, classmethod) else value
        if type(function) is types.FunctionType and depth > 0 and function.__code__ not in read and len(read) < _MOST:
            read.add(function.__code__)
            if not is_library(function.__code__.co_filename):
                yield from _names(function, depth - 1, read)
    if pending is not None:
        yield pending


def _bound_to(obj: Any) -> Any:
    """The object of a bound method, such as ``__exit__`` kept by a ``with`` statement; any other object itself."""
    return obj.__self__ if type(obj) is types.MethodType else obj


def _attribute(obj: Any, name: str) -> Any:
    """What an attribute is, where reading it runs no code: of a module, a class, or an object whose class has it."""
    if safe_access.is_a(obj, types.ModuleType):
        return safe_access.get(safe_access.module_dict(obj), name)
    for one in safe_access.mro(obj if safe_access.is_a(obj, type) else type(obj)) if obj is not None else ():
        found = safe_access.get(safe_access.class_dict(one), name)
        if found is not None:
            return found
    return None


def _patched(objects: list[Any], depth: int, read: set[types.CodeType]) -> Iterator[str]:
    """The names that patches among some objects replaced, also through context managers."""
    for obj in objects if depth else ():
        kind = type(obj)
        if safe_access.class_module(kind) == _MONKEYPATCH and safe_access.class_name(kind) == "MonkeyPatch":
            yield from (name for _, name, _ in obj._setattr if type(name) is str)
            for mapping, name, _ in obj._setitem:
                if type(name) is str:
                    yield f"module {name}" if mapping is sys.modules else name
        elif kind is _PATCH:
            yield obj.attribute
        elif kind is _PATCH_DICT:
            of_modules = obj.in_dict is sys.modules
            yield from (f"module {name}" if of_modules else name for name in obj.values if type(name) is str)
            if type(obj.in_dict) is str:
                yield obj.in_dict.rpartition(".")[2]
        elif kind is types.MethodType:
            yield from _patched([obj.__self__], depth - 1, read)
        elif kind is _GeneratorContextManager:
            yield from _names(obj.gen, depth - 1, read)
        elif kind in _EXIT_STACKS:
            for _, callback in [*obj._exit_callbacks]:
                yield from _names(callback, depth - 1, read)
        elif safe_access.class_module(kind).startswith(_HELPERS):
            yield from _patched(_parts(obj), depth, read)


def _parts(obj: Any) -> list[Any]:
    """What an object of a helper holds, through its own objects and containers."""
    found, waiting, seen = [], [obj], {id(obj)}
    while waiting and len(seen) < 1000:
        for one in referents(waiting.pop()):
            if id(one) not in seen:
                seen.add(id(one))
                if safe_access.class_module(type(one)).startswith(_HELPERS) or type(one) in (dict, list, tuple):
                    waiting.append(one)
                else:
                    found.append(one)
    return found


def _is_full(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty one raises
    except ValueError:
        return False
    return True
