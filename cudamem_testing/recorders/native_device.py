"""Reads a device's counters through the native library, ten times as fast as torch's function.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
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


class NativeDevice:
    """The counters of one device, by the number of its `c10::DeviceType`. Not thread-safe."""

    def __init__(self, library: ctypes.PyDLL, device_type: int, index: int) -> None:
        functions = library.cudamem_device_functions(device_type, index, Counters)
        alone, read, forget, set_alone, source = functions
        self.read_alone: Callable[[], Counters | None] = alone
        """The counters, for the only one who resets the device's peaks; the same object if nothing has changed.

        Returns `None` if `read` has peaks to report or cannot read either; then nothing was reset.
        """
        self._read: Callable[[bool], tuple[Counters, tuple[int, ...]] | None] = read
        self.forget: Callable[[], None] = forget
        """Forget the reported peaks, so that the next ones are reported again."""
        self.set_alone: Callable[[bool], None] = set_alone
        """Say whether no other code resets the device's peaks, so that its source may be read."""
        self.source: object = source
        """See :class:`~.base.Recorder`."""

    def read(self, *, every: bool = False) -> tuple[Counters, Levels] | None:
        """The counters, and the device's peaks if they were reset.

        The peaks are empty if none is higher than already reported, unless `every` is set. Returns `None` if torch's
        own function must be called, which gives the reason or more detail; then nothing was reset.
        """
        found = self._read(every)
        if found is None:
            return None
        counters, peaks = found
        return counters, dict(zip(PLACES, peaks, strict=False))
