"""Reads lines of source files, for findings that show them.

``linecache`` looks up ``open``, ``os.stat`` and its own functions when it is called: a test that replaces one of them
would count our calls, and we would read what its mock returns. So files are read here with functions that were bound
when this module was imported. Code without a file (typed, or created at run time) is taken from what ``linecache``
keeps. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import io
import linecache
import os
import stat
import tokenize
from functools import lru_cache
from typing import Any

from cudamem_testing.show.printable import one_line

_open, _stat, _detect_encoding = io.open, os.stat, tokenize.detect_encoding
_kept: dict[str, Any] = linecache.cache


def source_lines(file: str) -> list[str]:
    """The lines of a file, each with its line break; empty if it cannot be read."""
    kept = _kept.get(file, ())
    if len(kept) == 4 and kept[1] is None:  # (size, time of change, lines, name): without a time there is no file
        return list(kept[2])
    try:
        found = _stat(file)
        return list(_read(file, found.st_mtime_ns, found.st_size)) if stat.S_ISREG(found.st_mode) else []
    except (OSError, ValueError, SyntaxError, LookupError):  # a null character in its name, an unknown encoding
        return []


def source_line(file: str, number: int) -> str:
    """Line ``number`` of a file without its indentation, safe to show; empty if it cannot be read."""
    return one_line(raw_line(file, number).strip().expandtabs(1))


def raw_line(file: str, number: int) -> str:
    """Line ``number`` of a file, unchanged; empty if it cannot be read."""
    lines = source_lines(file)
    return lines[number - 1] if 0 < number <= len(lines) else ""


def equal_lines_above(file: str, number: int) -> int:
    """How many lines above it in the same function say the same; that begins at a ``def`` with less indentation."""
    lines = source_lines(file)
    if not 0 < number <= len(lines):
        return 0
    here = lines[number - 1]
    text, indent = here.strip(), _indent(here)
    equal = 0
    for line in reversed(lines[: number - 1]):
        words = line.strip()
        if words.startswith(("def ", "async def ", "class ")) and _indent(line) < indent:
            break
        equal += words == text
    return equal


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@lru_cache(maxsize=32)
def _read(file: str, changed: int, size: int) -> tuple[str, ...]:
    """The lines of a file that last changed at this time (nanoseconds) and had this size."""
    with _open(file, "rb") as stream:
        encoding, _ = _detect_encoding(stream.readline)
        stream.seek(0)
        return tuple(io.StringIO(stream.read().decode(encoding, "replace"), newline=None))
