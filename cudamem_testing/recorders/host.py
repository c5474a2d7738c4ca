"""Pinned host memory, the pseudo-device ``host``: what CUDA's host allocator counts.

``allocated`` is what tensors hold, ``reserved`` what the allocator keeps from the driver, in bytes; peak and retained
are measured, blocks are not told apart. As on the cards, peaks that anybody resets are folded first, and what our own
resets hide from the test is added back when it reads. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Any

from cudamem_testing import torch_api
from cudamem_testing.guards import Function, Patches
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.base import WithoutEvidence, WithoutOwners, WithoutWorkspaces
from cudamem_testing.recorders.cuda import Stats, keep_peaks, raise_peaks

READER = "_cuda_hostMemoryStats"
PEAK_RESET = "_cuda_resetPeakHostMemoryStats"
ZERO = Counters(allocated=0, allocated_peak=0, reserved=0, reserved_peak=0, allocations=0, blocks=0)


def measurable() -> bool:
    """Whether this torch gives statistics of pinned memory."""
    return torch_api.cuda_function(READER) is not None and torch_api.cuda_function(PEAK_RESET) is not None


class HostRecorder(WithoutOwners, WithoutEvidence, WithoutWorkspaces):
    """Pinned memory of this process."""

    incomplete: str | None = None

    def __init__(self) -> None:
        self.device = Device("host")
        self._lost: list[Stats] = []
        self._hidden: list[Stats] = []
        self._patches = Patches()
        bindings = torch_api.bindings()
        self._read: Function = getattr(bindings, READER)
        self._reset: Function = getattr(bindings, PEAK_RESET)
        self._patches.replace(bindings, READER, self._reading)
        self._patches.replace(bindings, PEAK_RESET, self._resetting)

    def wake(self, *, limited: bool) -> None:
        """Always awake."""

    def sleep(self) -> None:
        """Always awake."""

    def boundary(self) -> Counters:
        """One C call and a reset of the peaks; zeros before CUDA is initialised."""
        if not torch_api.cuda_initialized():
            return ZERO
        stats = self._read()
        peaks = [stats, *self._lost]
        self._lost.clear()
        if any(stats[name]["peak"] != stats[name]["current"] for name in ("active_bytes", "allocated_bytes")):
            keep_peaks(self._hidden, stats)
            self._reset()
        held, kept, requests = stats["active_bytes"], stats["allocated_bytes"], stats["active_requests"]
        return Counters(
            allocated=held["current"],
            allocated_peak=max(one["active_bytes"]["peak"] for one in peaks),
            reserved=kept["current"],
            reserved_peak=max(one["allocated_bytes"]["peak"] for one in peaks),
            allocations=requests["allocated"],
            blocks=requests["current"],
        )

    def finish(self) -> None:
        """Pinned blocks are free when the cards have finished."""

    def set_limit(self, size: int | None) -> None:
        """Not possible.

        Raises:
            RuntimeError: always.
        """
        if size is not None:
            raise RuntimeError("pinned host memory cannot be limited")

    def close(self) -> None:
        """Put torch's functions back."""
        self._patches.restore()

    def _reading(self, original: Function) -> Function:
        def host_memory_stats(*rest: Any) -> Stats:
            stats: Stats = original(*rest)
            for hidden in self._hidden:
                raise_peaks(stats, hidden)
            return stats

        return host_memory_stats

    def _resetting(self, original: Function) -> Function:
        def reset_peak_host_memory_stats(*rest: Any) -> Any:
            if torch_api.cuda_initialized():
                keep_peaks(self._lost, self._read())
                self._hidden.clear()
            return original(*rest)

        return reset_peak_host_memory_stats
