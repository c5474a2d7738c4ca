"""Measures pinned host memory, the pseudo-device ``host``, through CUDA's host allocator.

``allocated`` is what tensors hold, ``reserved`` what the allocator holds from the driver, in bytes; peak and retained
are measured, single blocks are not. As on cards, peaks are read before anyone resets them, and peaks that our own
resets hide from the test are added back when it reads. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from cudamem_testing import torch_api
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.base import WithoutEvidence, WithoutOwners, WithoutWorkspaces
from cudamem_testing.recorders.peaks import SharedPeaks

READER = "_cuda_hostMemoryStats"
PEAK_RESET = "_cuda_resetPeakHostMemoryStats"
#: Names of what tensors hold, what the allocator holds, and requests: from torch 2.10 on, and before.
NAMES = ("active_bytes", "allocated_bytes", "active_requests")
OLDER_NAMES = ("allocated_bytes", "reserved_bytes", "allocation")
ZERO = Counters(allocated=0, allocated_peak=0, reserved=0, reserved_peak=0, allocations=0, blocks=0)


def measurable() -> bool:
    """Whether this torch has statistics of pinned memory."""
    return torch_api.cuda_function(READER) is not None and torch_api.cuda_function(PEAK_RESET) is not None


def _unknown() -> int:
    """Without the native library nothing says that it is unchanged."""
    return 0


class HostRecorder(WithoutOwners, WithoutEvidence, WithoutWorkspaces):
    """Pinned memory of this process."""

    incomplete: str | None = None

    def __init__(self, is_still: Callable[[], int] | None = None) -> None:
        """``is_still`` says whether nothing has changed since its last call; it is called once CUDA is initialised."""
        self.device = Device("host")
        self._watch = is_still or _unknown
        self._is_still: Callable[[], int] | None = None  # the same once CUDA is initialised
        self._last: Counters | None = None  # the last counters, if no peak is above them
        self._peaks = SharedPeaks(READER, PEAK_RESET, lambda: torch_api.cuda_initialized())

    def wake(self, *, limited: bool) -> None:
        """Always awake."""

    def sleep(self) -> None:
        """Always awake."""

    def read_and_reset_peaks(self) -> Counters:
        """One C call, and a reset of peaks above the current level; zeros before CUDA is initialised."""
        is_still = self._is_still
        if is_still is not None and is_still() and (last := self._last) is not None and self._peaks.lost is None:
            return last
        return self._read()

    def _read(self) -> Counters:
        if self._is_still is None:
            if not torch_api.cuda_initialized():
                return ZERO
            self._is_still = self._watch
            self._is_still()  # what changes from here on has not been read
        stats = self._peaks.peek()
        names = NAMES if NAMES[0] in stats else OLDER_NAMES
        held, kept, requests = (stats[name] for name in names)
        at_rest = self._peaks.take(stats, held["peak"] == held["current"] and kept["peak"] == kept["current"])
        found = Counters(
            allocated=held["current"],
            allocated_peak=held["peak"],
            reserved=kept["current"],
            reserved_peak=kept["peak"],
            allocations=requests["allocated"],
            blocks=requests["current"],
        )
        self._last = found if at_rest else None
        return found

    def finish(self) -> None:
        """Pinned blocks are free when the cards have finished."""

    def limit(self, size: int) -> NoReturn:
        """Not possible.

        Raises:
            RuntimeError: always.
        """
        __tracebackhide__ = True
        raise RuntimeError("pinned host memory cannot be limited")

    def close(self) -> None:
        """Restore torch's functions."""
        self._peaks.close()
