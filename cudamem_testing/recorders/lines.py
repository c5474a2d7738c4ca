"""Finds the code of a line in the loaded code, to recognise allocations there. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import NamedTuple

from cudamem_testing.safe_access import class_dict, is_a, module_dict


class LineCode(NamedTuple):
    """Instructions of a line: those of a code object from one position to before another, in bytes."""

    code: CodeType
    first: int
    last: int


def code_of_line(file: str, line: int) -> list[LineCode]:
    """The instructions of a line in all functions and running frames; ``file`` is the end of its path.

    Raises:
        ValueError: if no loaded code has that line.
    """
    found: dict[CodeType, list[LineCode]] = {}
    known_file = False
    for code in _codes(file):
        if code not in found and ends_with(code.co_filename, file):
            known_file = True
            found[code] = [LineCode(code, first, last) for first, last, at in code.co_lines() if at == line]
    places = [place for parts in found.values() for place in parts]
    if not places:
        missing = f"line {line} of {file} has no code" if known_file else f"no code of {file} is loaded"
        raise ValueError(f'at="{file}:{line}": {missing}')
    return places


def _codes(file: str) -> Iterator[CodeType]:
    """The code of functions and of running frames, each with the code inside it.

    The collector does not list frozen functions: those of the file's own modules are read there.
    """
    pending: list[CodeType] = [one.__code__ for one in gc.get_objects() if is_a(one, FunctionType)]
    pending += _codes_of_modules(file)
    for outermost in sys._current_frames().values():
        frame: FrameType | None = outermost
        while frame is not None:
            pending.append(frame.f_code)
            frame = frame.f_back
    seen: set[int] = set()
    while pending:
        code = pending.pop()
        if id(code) not in seen:
            seen.add(id(code))
            yield code
            pending += [one for one in code.co_consts if is_a(one, CodeType)]


def _codes_of_modules(file: str) -> Iterator[CodeType]:
    for module in [*sys.modules.values()]:
        names = (module_dict(module) if is_a(module, ModuleType) else None) or {}
        path = names.get("__file__")
        if type(path) is str and ends_with(path, file):
            for value in [*names.values()]:
                inner = [*class_dict(value).values()] if is_a(value, type) else [value]
                for one in inner:
                    function = one.__func__ if is_a(one, staticmethod) or is_a(one, classmethod) else one
                    if is_a(function, FunctionType):
                        yield function.__code__


def ends_with(path: str, file: str) -> bool:
    """Whether a file is one that the user named by the end of its path."""
    path, file = (os.path.normpath(name).replace("\\", "/") for name in (path, file))
    return path == file or path.endswith(f"/{file}")
