"""Finds the line of a function that changes a name, from its bytecode. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable

_STORES = frozenset({"STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "DELETE_ATTR", "DELETE_GLOBAL"})
_PARTS = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
_METHODS = frozenset(
    {"append", "add", "extend", "insert", "update", "setdefault", "pop", "popleft", "popitem", "remove", "discard"}
    | {"clear", "sort", "reverse", "appendleft", "__setitem__", "register_buffer"}
)


def line_that_changes(codes: Iterable[types.CodeType], names: Iterable[str]) -> tuple[types.CodeType, int] | None:
    """The first line that assigns to one of the names, to a part of it, or calls a method that changes it.

    Names are ordered from near to far (``history`` before ``self``); a line that matches a nearer one wins.
    """
    codes = [*codes]
    for name in names:
        for code in codes:
            line = _line(code, name)
            if line is not None:
                return code, line
    return None


def line_that_uses(codes: Iterable[types.CodeType], name: str) -> tuple[types.CodeType, int] | None:
    """The first line that mentions a name."""
    for code in codes:
        for line, instructions in _lines(code):
            if any(_mentions(argument, name) for _, argument in instructions):
                return code, line
    return None


def _line(code: types.CodeType, name: str) -> int | None:
    for line, instructions in _lines(code):
        if any(operation in _STORES and _mentions(argument, name) for operation, argument in instructions):
            return line
        if not any(_mentions(argument, name) for _, argument in instructions):
            continue
        if any(operation in _PARTS or argument in _METHODS for operation, argument in instructions):
            return line
    return None


def _lines(code: types.CodeType) -> list[tuple[int, list[tuple[str, object]]]]:
    """Instructions by line, in the order of the source."""
    starts = {offset: line for offset, line in dis.findlinestarts(code) if line is not None}
    found: dict[int, list[tuple[str, object]]] = {}
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset, line)
        found.setdefault(line, []).append((instruction.opname, instruction.argval))
    return sorted(found.items())


def _mentions(argument: object, name: str) -> bool:
    return argument == name if isinstance(argument, str) else isinstance(argument, tuple) and name in argument
