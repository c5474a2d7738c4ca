"""A device's counters, read by the native library: a microsecond or two, where torch's function takes ten times that.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import struct
from functools import partial
from itertools import product

from cudamem_testing.model.counters import Counters
from cudamem_testing.recorders.peaks import Levels

#: Places of the statistics that have peaks, in the order of `device_counters.h`.
PLACES = (
    *product(
        (
            "allocation",
            "segment",
            "active",
            "inactive_split",
            "allocated_bytes",
            "reserved_bytes",
            "active_bytes",
            "inactive_split_bytes",
            "requested_bytes",
        ),
        ("all", "small_pool", "large_pool"),
    ),
    ("oversize_allocations",),
    ("oversize_segments",),
)
_STILL = 3
_new = tuple.__new__  # takes a third of the time of a named tuple's own
_COUNTERS = struct.Struct("=12q")
_PEAKS = struct.Struct(f"={len(PLACES)}q")
_PEAKS_AT = _COUNTERS.size + 8  # behind a number for journals
_TOLD_AT = _PEAKS_AT + _PEAKS.size + 8  # behind a flag
_SIZE = _TOLD_AT + _PEAKS.size


class NativeDevice:
    """The counters of one device, by the number of its `c10::DeviceType`. Not for two threads."""

    def __init__(self, library: ctypes.PyDLL, device_type: int, index: int) -> None:
        self._buffer = ctypes.create_string_buffer(_SIZE)
        device = ctypes.c_int32(device_type), ctypes.c_int32(index), self._buffer
        self._read = partial(library.cudamem_read_device, *device)

    def read(self, *, every: bool = False, known: Counters | None = None) -> tuple[Counters, Levels | None] | None:
        """The counters, and the device's peaks where new ones have started.

        These are empty where none is higher than any that was told, unless `every` is to be told. Where all is as it
        was at the last reading, and no peak was above what was there, it is `known` that comes back, if that is what
        was read. The answer is `None` where torch's own function has to be asked, which says why or tells more; then
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
        """What was told is forgotten: the next peaks are news."""
        ctypes.memset(ctypes.addressof(self._buffer) + _TOLD_AT, 0, _PEAKS.size)
