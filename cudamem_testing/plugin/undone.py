"""What wider fixtures undo at their end: names that their teardown mentions, and what they patched.

A fixture of a module that replaces ``lib.CACHE`` puts the old value back when it ends. What tests add to the new one
lives until then, and is the fixture's: no test can hold it in anything wider. Whether the end really frees it is looked
at when it comes (run/entrusted.py). PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from contextlib import _GeneratorContextManager
from typing import Any
from unittest import mock

import pytest

from cudamem_testing.static import referents

_NAMING = frozenset(
    f"{verb}_{kind}" for verb in ("LOAD", "STORE", "DELETE") for kind in ("ATTR", "GLOBAL", "NAME", "METHOD", "CONST")
)
_PATCH: Any = mock._patch
_DEPTH = 4


def names_undone(definition: pytest.FixtureDef[Any]) -> set[str]:
    """Attributes, globals and keys that the rest of a fixture's code mentions, or that its patches replaced."""
    names: set[str] = set()
    for finalizer in [*definition._finalizers]:
        names.update(_names(finalizer, _DEPTH))
    return names


def _names(obj: Any, depth: int) -> Iterator[str]:
    kind = type(obj)
    if kind is types.GeneratorType:
        if obj.gi_frame is not None:
            yield from _mentioned(obj.gi_code, obj.gi_frame.f_lasti)
            yield from _patched(referents(obj, obj.gi_frame), depth)
            for name, value in obj.gi_frame.f_locals.items():
                if name.startswith(("teardown", "tearDown")):  # of a module or class, which pytest calls
                    yield from _names(value, depth - 1)
    elif kind is functools.partial:
        for argument in (obj.func, *obj.args, *obj.keywords.values()):
            if type(argument) is types.GeneratorType or argument is obj.func:
                yield from _names(argument, depth)
    elif kind is types.MethodType:
        yield from _names(obj.__func__, depth)
        yield from _patched([obj.__self__], depth)
    elif kind is types.FunctionType:
        yield from _mentioned(obj.__code__, -1)
        yield from _patched([cell.cell_contents for cell in obj.__closure__ or () if _is_full(cell)], depth)


def _mentioned(code: types.CodeType, after: int) -> Iterator[str]:
    """Names and texts in the code behind an instruction."""
    for instruction in dis.get_instructions(code):
        if instruction.offset > after and instruction.opname in _NAMING and type(instruction.argval) is str:
            yield instruction.argval


def _patched(objects: list[Any], depth: int) -> Iterator[str]:
    """What patches among some objects replaced, and those that they are the context managers of."""
    for obj in objects if depth else ():
        if type(obj) is pytest.MonkeyPatch:
            yield from (name for _, name, _ in [*obj._setattr, *obj._setitem] if type(name) is str)
        elif type(obj) is _PATCH:
            yield obj.attribute
        elif type(obj) is types.MethodType:
            yield from _patched([obj.__self__], depth - 1)
        elif type(obj) is _GeneratorContextManager:
            yield from _names(obj.gen, depth - 1)


def _is_full(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty one raises
    except ValueError:
        return False
    return True
