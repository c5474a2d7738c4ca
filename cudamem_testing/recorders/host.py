"""Measures pinned host memory, the pseudo-device ``host``, through CUDA's host allocator.

``allocated`` is what tensors hold, ``reserved`` what the allocator holds from the driver, in bytes; peak and retained
are measured, single blocks are not. As on cards, peaks are read before anyone resets them, and peaks that our own
resets hide from the test are added back when it reads. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from cudamem_testing import torch_api
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.base import WithoutEvidence, WithoutOwners, WithoutWorkspaces
from cudamem_testing.recorders.peaks import SharedPeaks

if TYPE_CHECKING:
    from cudamem_testing.recorders.card_recorder import HostWatch

READER = "_cuda_hostMemoryStats"
PEAK_RESET = "_cuda_resetPeakHostMemoryStats"
#: Names of what tensors hold, what the allocator holds, and requests: from torch 2.10 on, and before.
NAMES = ("active_bytes", "allocated_bytes", "active_requests")
OLDER_NAMES = ("allocated_bytes", "reserved_bytes", "allocation")
ZERO = Counters(allocated=0, allocated_peak=0, reserved=0, reserved_peak=0, allocations=0, blocks=0)


def measurable() -> bool:
    """Whether this torch has statistics of pinned memory."""
    return torch_api.cuda_function(READER) is not None and torch_api.cuda_function(PEAK_RESET) is not None


class HostRecorder(WithoutOwners, WithoutEvidence, WithoutWorkspaces):
    """Pinned memory of this process."""

    incomplete: str | None = None

    def __init__(self, watch: HostWatch | None = None) -> None:
        """``watch`` is used once CUDA is initialised; without one every reading asks torch."""
        self.device = Device("host")
        self._watch = watch
        self._started = False
        self._last: Counters | None = None  # the last counters, if no peak is above them
        self._peaks = SharedPeaks(READER, PEAK_RESET, lambda: torch_api.cuda_initialized())
        if watch is not None:
            self._peaks.on_reset = watch.was_reset

    @property
    def source(self) -> object | None:
        """Once CUDA is initialised, unless others have reset peaks."""
        watch = self._watch
        return None if watch is None or not self._started or self._peaks.lost is not None else watch.source

    def wake(self, *, limited: bool) -> None:
        """Always awake."""

    def sleep(self) -> None:
        """Always awake."""

    def read_and_reset_peaks(self) -> Counters:
        """One C call, and a reset of peaks above the current level; zeros before CUDA is initialised."""
        if not self._started:
            if not torch_api.cuda_initialized():
                return ZERO
            self._started = True
        watch = self._watch  # asked in any case: what changes from here on has not been read
        if watch is not None and watch.is_still() and (last := self._last) is not None and self._peaks.lost is None:
            return last
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
