"""Measures accelerators other than CUDA through ``torch.accelerator``'s statistics.

Peaks, reserved and retained bytes are measured; single blocks are not, so nothing says who holds them. As on cards,
peaks are read before anyone resets them, and peaks that our own resets hide from the test are added back when it reads.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import NoReturn

from cudamem_testing import torch_api
from cudamem_testing.model.counters import PEAKS, ZERO, Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.base import WithoutEvidence, WithoutOwners, WithoutWorkspaces
from cudamem_testing.recorders.peaks import SharedPeaks, Stats

READER, PEAK_RESET = torch_api.ACCELERATOR_READER, torch_api.ACCELERATOR_PEAK_RESET
#: Statistics of sizes, in the order of the fields of ``Counters``; a device may lack some.
SIZES = ("allocated_bytes", "requested_bytes", "reserved_bytes", "active_bytes")
COUNTS = {
    "allocations": ("allocation", "allocated"),
    "segments": ("segment", "allocated"),
    "blocks": ("allocation", "current"),
}


class AcceleratorRecorder(WithoutOwners, WithoutEvidence, WithoutWorkspaces):
    """One device."""

    incomplete: str | None = None

    def __init__(self, device: Device) -> None:
        self.device = device
        self.why_untold = f"torch.accelerator counts the memory of {device.kind} and lists no blocks"
        self._index = device.index or 0
        started = torch_api.accelerator_started
        self._peaks = SharedPeaks(READER, PEAK_RESET, started, self._index)

    def wake(self, *, limited: bool) -> None:
        """Always awake."""

    def sleep(self) -> None:
        """Always awake."""

    def read_and_reset_peaks(self) -> Counters:
        """One C call, and a reset of peaks above the current level; zeros before the device is used."""
        if not torch_api.accelerator_started():
            return ZERO
        stats = self._peaks.peek()
        self._peaks.take(stats, all(_all(stats, name, "peak") == _all(stats, name, "current") for name in SIZES))
        return counters_of(stats)

    def finish(self) -> None:
        """Wait for the device; does nothing before it is used."""
        if torch_api.accelerator_started():
            torch_api.synchronize_accelerator(self._index)

    def limit(self, size: int) -> NoReturn:
        """Not possible.

        Raises:
            RuntimeError: always.
        """
        __tracebackhide__ = True
        raise RuntimeError(f"memory of {self.device} cannot be limited: torch.accelerator has no limit")

    def close(self) -> None:
        """Restore torch's functions."""
        self._peaks.close()


def counters_of(stats: Stats) -> Counters:
    """What statistics of a device say, with a note about what they lack."""
    sizes = dict(zip(PEAKS, SIZES, strict=True))
    found = {peak.removesuffix("_peak"): _all(stats, name, "current") for peak, name in sizes.items()}
    found |= {peak: _all(stats, name, "peak") for peak, name in sizes.items()}
    found |= {field: _all(stats, *place) for field, place in COUNTS.items()}
    retries = stats.get("num_alloc_retries")
    missing = [name for name in (*SIZES, "allocation", "segment") if _all(stats, name, "current") is None]
    notes = (f"this device does not count {', '.join(missing)}",) if missing else ()
    return Counters(**found, retries=retries, notes=notes)


def _all(stats: Stats, name: str, which: str) -> int | None:
    """A value over all pools; ``None`` where the device does not count it."""
    values = stats.get(name, {})
    found: int | None = values.get("all", {}).get(which)
    return found
