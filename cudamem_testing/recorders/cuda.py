"""CUDA: the counters of the caching allocator.

The allocator has one set of peaks per device and whoever resets them resets them for everybody. Two virtual views make
that safe. Ours: when a test (or another plugin) resets the peaks, they are folded first, so that a window never loses
one. The test's: what our own resets hide is added back when the test reads its statistics. Both stand on replacing the
functions of ``torch._C`` that every spelling of the Python API looks up at each call. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Any

from cudamem_testing import torch_api
from cudamem_testing.guards import Function, Patches
from cudamem_testing.model.counters import ZERO, Counters
from cudamem_testing.model.devices import Device

Stats = dict[str, Any]
READERS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
PEAK_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
COUNT_RESETS = ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats")
_FOLD_AFTER = 64


class CudaStatistics:
    """The allocator's statistics for all devices, with the test's view of its peaks kept apart from ours."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._lost: dict[int, list[Stats]] = {}  # read just before somebody else reset the peaks
        self._hidden: dict[int, list[Stats]] = {}  # read just before we reset them
        self._counted: dict[int, tuple[int, int, int]] = {}  # counts that somebody reset
        bindings = torch_api.bindings()
        self._read: Function = getattr(bindings, READERS[0])
        self._reset: Function = getattr(bindings, PEAK_RESETS[0])
        for name in READERS:
            self._patches.replace(bindings, name, self._reading)
        for name in PEAK_RESETS:
            self._patches.replace(bindings, name, self._resetting_peaks)
        for name in COUNT_RESETS:
            self._patches.replace(bindings, name, self._resetting_counts)

    def read(self, index: int) -> tuple[Stats, list[Stats], tuple[int, int, int]]:
        """The statistics, those lost to resets since the last read, and the counts lost; starts new peaks."""
        stats = self._read(index)
        _append(self._hidden.setdefault(index, []), stats)
        self._reset(index)
        return stats, self._lost.pop(index, []), self._counted.get(index, (0, 0, 0))

    def peek(self, index: int) -> Stats:
        """The statistics as they are; nothing is reset."""
        stats: Stats = self._read(index)
        return stats

    def close(self) -> None:
        """Put torch's own functions back."""
        self._patches.restore()

    def _reading(self, original: Function) -> Function:
        def memory_stats(index: int, *rest: Any) -> Stats:
            stats: Stats = original(index, *rest)
            for hidden in self._hidden.get(index, ()):
                _raise_peaks(stats, hidden)
            return stats

        return memory_stats

    def _resetting_peaks(self, original: Function) -> Function:
        def reset_peak_memory_stats(index: int, *rest: Any) -> None:
            _append(self._lost.setdefault(index, []), self._read(index))
            self._hidden.pop(index, None)
            original(index, *rest)

        return reset_peak_memory_stats

    def _resetting_counts(self, original: Function) -> Function:
        def reset_accumulated_memory_stats(index: int, *rest: Any) -> None:
            before = self._counted.get(index, (0, 0, 0))
            now = counts(self._read(index))
            self._counted[index] = (before[0] + now[0], before[1] + now[1], before[2] + now[2])
            original(index, *rest)

        return reset_accumulated_memory_stats


class CudaRecorder:
    """One card."""

    incomplete: str | None = None

    def __init__(self, device: Device, statistics: CudaStatistics, backend: str = "native") -> None:
        self.device = device
        self._index = device.index or 0
        self._statistics = statistics
        self._native = backend == "native"
        self._notes = () if self._native else (f"allocator {backend} counts allocated and reserved bytes only",)
        self._fraction: float | None = None

    def wake(self, *, limited: bool) -> None:
        """Always awake."""

    def boundary(self) -> Counters:
        """One C call and a reset of the peaks; zeros, without a call, before CUDA is initialised."""
        if not torch_api.cuda_initialized():
            return ZERO
        stats, lost, counted = self._statistics.read(self._index)
        allocated = stats["allocated_bytes"]["all"]
        reserved = stats["reserved_bytes"]["all"]
        peaks = [stats, *lost]
        if not self._native:
            return Counters(
                allocated=allocated["current"],
                allocated_peak=_peak(peaks, "allocated_bytes"),
                reserved=reserved["current"],
                reserved_peak=_peak(peaks, "reserved_bytes"),
                notes=self._notes,
            )
        allocations, segments, retries = counts(stats)
        return Counters(
            allocated["current"],
            _peak(peaks, "allocated_bytes"),
            stats["requested_bytes"]["all"]["current"],
            _peak(peaks, "requested_bytes"),
            reserved["current"],
            _peak(peaks, "reserved_bytes"),
            stats["active_bytes"]["all"]["current"],
            _peak(peaks, "active_bytes"),
            allocations + counted[0],
            segments + counted[1],
            retries + counted[2],
        )

    def set_limit(self, size: int | None) -> None:
        """Limit through the fraction of the card that torch may reserve.

        Cached segments are given back first, so that the limit binds; the allocator takes segments of 2 MiB and more,
        so it binds to the next segment, not to the byte.
        """
        if size is None:
            torch_api.set_memory_fraction(self._index, 1.0 if self._fraction is None else self._fraction)
            return
        total = torch_api.total_memory(self._index)
        self._fraction = torch_api.memory_fraction(self._index)
        torch_api.empty_cache()
        stats = self._statistics.peek(self._index)
        taken = stats["reserved_bytes"]["all"]["current"]
        torch_api.set_memory_fraction(self._index, min(1.0, (taken + size) / total))

    def close(self) -> None:
        """Nothing of its own: the statistics are shared by all cards and closed with them."""


def counts(stats: Stats) -> tuple[int, int, int]:
    """Blocks and segments ever allocated, and retries, since somebody reset the counts."""
    return (
        stats["allocation"]["all"]["allocated"],
        stats["segment"]["all"]["allocated"],
        stats["num_alloc_retries"],
    )


def _peak(stats: list[Stats], name: str) -> int:
    return max(int(one[name]["all"]["peak"]) for one in stats)


def _append(kept: list[Stats], stats: Stats) -> None:
    kept.append(stats)
    if len(kept) > _FOLD_AFTER:
        first = kept[0]
        for later in kept[1:]:
            _raise_peaks(first, later)
        del kept[1:]


def _raise_peaks(stats: Stats, other: Stats) -> None:
    for name, pools in stats.items():
        if not isinstance(pools, dict):
            continue
        for pool, values in pools.items():
            if isinstance(values, dict) and "peak" in values:
                values["peak"] = max(values["peak"], other.get(name, {}).get(pool, {}).get("peak", 0))
