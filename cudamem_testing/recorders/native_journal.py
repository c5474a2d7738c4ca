"""Journals of the native library: record counters in a fraction of a microsecond, and read them at the end.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from cudamem_testing.recorders.native_calls import room
from cudamem_testing.recorders.native_device import PLACES
from cudamem_testing.recorders.peaks import Levels

_NOTE = struct.Struct("=7q")
_Peaks = ctypes.c_int64 * len(PLACES)


class Note(NamedTuple):
    """Counters at one moment, in bytes; below 0 if the device does not know them.

    `peak` is the highest level since the note before. `allocated_total`, `allocations` and `retries` only grow.
    """

    allocated: int
    peak: int
    allocated_total: int
    allocations: int
    active: int
    reserved: int
    retries: int


class NativeJournal:
    """Notes of one device. `note()` takes one and returns its number, from 0; -1 after it was closed.

    `note` is the C function itself, bound to the journal: it is called at every operator, without a Python frame.
    """

    note: Callable[[], int]

    def __init__(self, library: ctypes.PyDLL, handle: int) -> None:
        self._library = library
        self._handle = handle
        self.note = partial(library.cudamem_note, ctypes.c_int32(handle))

    def notes(self) -> list[Note]:
        """All notes so far."""
        most = int(self._library.cudamem_notes(self._handle, None, 0))
        memory, pointer = room(most * _NOTE.size)
        count = min(most, int(self._library.cudamem_notes(self._handle, pointer, most)))
        return [*map(Note._make, _NOTE.iter_unpack(memoryview(memory)[: count * _NOTE.size]))]

    def take_highest(self) -> Levels:
        """A device's peaks that notes reset since the last call, and the current ones; empty if there are none."""
        peaks = _Peaks()
        if not self._library.cudamem_take_highest(self._handle, peaks):
            return {}
        return dict(zip(PLACES, peaks, strict=True))

    def close(self) -> None:
        """Discard the notes; doing so again does nothing."""
        handle, self._handle = self._handle, -1
        self._library.cudamem_close_journal(handle)
