"""Reads a device's counters through the native library, ten times as fast as torch's function.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import struct
from functools import partial
from itertools import product

from cudamem_testing.model.counters import Counters
from cudamem_testing.recorders.peaks import Levels

#: What torch's allocator of cards counts, for each of its pools.
COUNTED = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
POOLS = ("all", "small_pool", "large_pool")
#: Statistics that have peaks, in the order of `device_counters.h`.
PLACES = (
    *product(COUNTED, POOLS),
    ("oversize_allocations",),
    ("oversize_segments",),
)
_STILL = 3
_new = tuple.__new__  # three times as fast as the named tuple's own
_COUNTERS = struct.Struct("=12q")
_PEAKS = struct.Struct(f"={len(PLACES)}q")
_PEAKS_AT = _COUNTERS.size + 8  # behind a number for journals
_TOLD_AT = _PEAKS_AT + _PEAKS.size + 8  # behind a flag
_Buffer = ctypes.c_char * (_TOLD_AT + _PEAKS.size)


class NativeDevice:
    """The counters of one device, by the number of its `c10::DeviceType`. Not thread-safe."""

    def __init__(self, library: ctypes.PyDLL, device_type: int, index: int) -> None:
        self._buffer = _Buffer()
        device = ctypes.c_int32(device_type), ctypes.c_int32(index), self._buffer
        self._read = partial(library.cudamem_read_device, *device)

    def read(self, *, every: bool = False, known: Counters | None = None) -> tuple[Counters, Levels | None] | None:
        """The counters, and the device's peaks if they were reset.

        The peaks are empty if none is higher than already reported, unless `every` is set. If nothing changed
        since the last reading, and no peak was above the current level, `known` is returned, if that is what
        was read. Returns `None` if torch's own function must be called, which gives the reason or more detail; then
        nothing was reset.
        """
        outcome = self._read(every, known is not None)
        if outcome == _STILL and known is not None:
            return known, None
        if outcome < 0:
            return None
        counters = _new(Counters, (*_COUNTERS.unpack_from(self._buffer), ()))
        if outcome < 2:
            return counters, {} if outcome else None
        return counters, dict(zip(PLACES, _PEAKS.unpack_from(self._buffer, _PEAKS_AT), strict=True))

    def forget(self) -> None:
        """Forget the reported peaks, so that the next ones are reported again."""
        ctypes.memset(ctypes.addressof(self._buffer) + _TOLD_AT, 0, _PEAKS.size)
