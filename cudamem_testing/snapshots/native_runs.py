"""Reads many events of a pickled history at once, in C++: as :mod:`event_runs` does, and several times faster.

The library finds the columns, and numbers the values that are no integers by the instructions that make them; their
objects are made here. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from array import array
from itertools import repeat
from typing import Any, Final

from cudamem_testing.snapshots.event_layouts import CONSTANTS, REFERENCES, integers
from cudamem_testing.snapshots.event_runs import Run, Runs
from cudamem_testing.snapshots.native import library
from cudamem_testing.snapshots.rows import ABSENT, ACTION, KNOWN_TO_RUNS, ROW, Numbered, Rows, SharedRowError

#: A run of fewer events is not worth its call: after it, ever more events are left to others.
_FEW, _MOST_SKIPPED = 8, 64
#: So many places of a column take the memory that is counted for a value.
_PLACES: Final = 8
_ITEM: Final = re.compile(rb"h.|j....", re.S)
_INTEGER, _ADDRESS = ctypes.c_uint64, ctypes.c_void_p


class _Column(ctypes.Structure):
    """As ``ColumnView`` in ``event_reader.h``."""

    _fields_ = (("key", _INTEGER), ("integers", _INTEGER), ("gaps", _INTEGER), ("values", _ADDRESS))


class _Span(ctypes.Structure):
    _fields_ = (("at", _INTEGER), ("size", _INTEGER))


class _Found(ctypes.Structure):
    _fields_ = (
        *((name, _INTEGER) for name in ("end", "rows", "values", "columns", "made", "kept")),
        ("column", ctypes.POINTER(_Column)),
        ("spans", ctypes.POINTER(_Span)),
    )


def runs(data: bytes, memo: list[Any], lists: dict[bytes, list[Any]]) -> Runs | NativeRuns:
    """What reads the runs of events in ``data``."""
    native = library(len(data))
    return Runs(data, memo, lists) if native is None else NativeRuns(native, data, memo)


class NativeRuns:
    """Finds runs of events in ``data``, given what was kept under numbers."""

    def __init__(self, library: ctypes.PyDLL, data: bytes, memo: list[Any]) -> None:
        self._data = data
        self._memo = memo
        self._objects = [ROW, ABSENT]
        self._found = _Found()
        self._call = ctypes.PYFUNCTYPE(ctypes.c_int, _ADDRESS, _INTEGER, _INTEGER, ctypes.POINTER(_Found))(
            ("cudamem_events_read", library)
        )
        self._number = ctypes.PYFUNCTYPE(ctypes.c_uint32, _ADDRESS, _INTEGER)(("cudamem_events_kept", library))
        opened = ctypes.PYFUNCTYPE(_ADDRESS, ctypes.c_char_p, _INTEGER, _INTEGER)(("cudamem_events_open", library))
        self._reader = opened(data, len(data), int.from_bytes(os.urandom(8), "little"))
        if not self._reader:
            raise MemoryError
        close = ctypes.PYFUNCTYPE(None, _ADDRESS)(("cudamem_events_close", library))
        weakref.finalize(self, close, self._reader)
        self._skipped = self._skip = 0

    def read(self, at: int) -> Run | None:
        """The run that begins with the event at a position; ``None`` if it cannot be read like this.

        What its instructions keep is added to what was kept before.

        Raises:
            SharedRowError: its keys are not those of events.
        """
        if self._skip:
            self._skip -= 1
            return None
        found = self._found
        if not self._call(self._reader, at, len(self._memo), found):
            raise MemoryError
        if found.rows < _FEW:
            self._skipped = min(2 * self._skipped + 1, _MOST_SKIPPED)
            self._skip = self._skipped
        else:
            self._skipped = 0
        if not found.rows:
            return None
        keys = [self.kept(one.key) for one in found.column[: found.columns]]
        if ACTION not in keys or {*map(type, keys)} != {str} or len({*keys}) < len(keys):
            raise SharedRowError
        self._objects += [self._made(self._data[one.at : one.at + one.size]) for one in found.spans[: found.made]]
        self._memo.extend(repeat(KNOWN_TO_RUNS, found.kept))
        columns = {key: self._column(one) for key, one in zip(keys, found.column[: found.columns], strict=True)}
        absent = [key for key, one in zip(keys, found.column, strict=False) if one.gaps]
        places = found.rows * found.columns  # also of what an event lacks
        return Run(Rows(columns, absent), found.end, found.values + places // _PLACES)

    def kept(self, place: int) -> Any:
        """What is kept under a number."""
        value = self._memo[place]
        return self._objects[self._number(self._reader, place)] if value is KNOWN_TO_RUNS else value

    def _column(self, one: _Column) -> array[int] | Numbered:
        numbers = array("q")
        numbers.frombytes(ctypes.string_at(one.values, 8 * self._found.rows))
        return numbers if one.integers else Numbered(numbers, self._objects)

    def _made(self, raw: bytes) -> Any:
        """The value that some instructions make."""
        code = raw[0]
        if code in REFERENCES:
            return self.kept(int.from_bytes(raw[1:], "little"))
        if code in CONSTANTS:
            return CONSTANTS[code]
        if code == 0x8C:
            return raw[2:-1].decode("utf-8", "surrogatepass")
        if code == 0x5D:
            return [self.kept(int.from_bytes(item[1:], "little")) for item in _ITEM.findall(raw, 2)]
        return (*integers(raw[:-2]),)
