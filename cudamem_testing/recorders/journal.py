"""Records the counters of one device before and after every operator; they are read at the end.

The native library takes a note in a fraction of a microsecond, on the CPU and, from torch 2.9 on, on a card. If it
cannot, statistics of a card are read through Python, which is exact and slower. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.recorders.cuda import DEVICE_TYPE, CudaStatistics
from cudamem_testing.recorders.native import NativeRecorder
from cudamem_testing.recorders.native_journal import NativeJournal, Note

UNKNOWN = -1
OLDER = "on cpu, blocks from before the recording are unknown: their frees are not seen"
SLOW = "the card's statistics were read through Python, about 50 µs per operator: {}"


class Journal(Protocol):
    """Notes of one device; ``remarks`` say what is missing."""

    device: Device
    remarks: tuple[str, ...]

    def note(self) -> int:
        """Take a note; returns its number, from 0."""
        ...

    def notes(self) -> list[Note]:
        """All notes so far."""
        ...

    def close(self) -> None:
        """Restore the process to its earlier state."""
        ...


class CpuJournal:
    """Notes of the CPU recorder, with a separate peak.

    Raises:
        RecorderUnavailable: if the recorder cannot be built or installed here.
    """

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self.device = Device("cpu")
        self._native = NativeRecorder.load(say)
        self._was_installed = self._native.is_installed()
        self.remarks: tuple[str, ...] = () if self._was_installed else (OLDER,)
        self._native.install()
        journal = self._native.journal()
        if journal is None:
            self._leave()
            raise RecorderUnavailable("too many recordings are open")
        self._journal = journal
        self.note, self.notes = journal.note, journal.notes

    def close(self) -> None:
        """Remove the recorder, unless other code installed it."""
        self._journal.close()
        self._leave()

    def _leave(self) -> None:
        if not self._was_installed:
            self._native.uninstall()


class CudaJournal:
    """Notes of a card, taken in C++. Peaks that they reset are passed on to all other readers."""

    remarks: tuple[str, ...] = ()

    def __init__(self, device: Device, journal: NativeJournal) -> None:
        self.device = device
        self._journal = journal
        self._statistics = CudaStatistics()
        self._pay = self._statistics.owe(device.index or 0, journal.take_highest)
        self.note, self.notes = journal.note, journal.notes

    def close(self) -> None:
        """Pass on the reset peaks, and restore torch's own functions if ours are no longer needed."""
        self._pay()
        self._journal.close()
        self._statistics.close()


class SlowCudaJournal:
    """Notes of a card, through Python.

    Raises:
        RuntimeError: if its allocator has no statistics.
    """

    def __init__(self, device: Device, reason: str) -> None:
        self.device = device
        self.remarks: tuple[str, ...] = (SLOW.format(reason),)
        self._index = device.index or 0
        self._notes: list[Note] = []
        self._statistics = CudaStatistics()
        try:
            self._statistics.peek(self._index)
        except BaseException:
            self._statistics.close()
            raise

    def note(self) -> int:
        """Read the statistics and reset the peaks."""
        stats, _ = self._statistics.read(self._index)
        allocated = stats["allocated_bytes"]["all"]
        self._notes.append(
            Note(
                allocated["current"],
                allocated["peak"],
                allocated["allocated"],
                _of_all(stats, "allocation", "allocated"),
                _of_all(stats, "active_bytes", "current"),
                stats["reserved_bytes"]["all"]["current"],
                stats.get("num_alloc_retries", 0),
            )
        )
        return len(self._notes) - 1

    def notes(self) -> list[Note]:
        """All notes so far."""
        return [*self._notes]

    def close(self) -> None:
        """Restore torch's own functions if ours are no longer needed."""
        self._statistics.close()


def open_journal(device: Device, say: Callable[[str], None] | None = None) -> Journal | str:
    """The cheapest journal for a device, or the reason why there is none. CUDA is not initialised."""
    if device.kind == "cpu":
        try:
            return CpuJournal(say)
        except RecorderUnavailable as error:
            return str(error).partition("\n")[0]
    if device.kind != "cuda":
        return f"torch's allocator of {device} is not measured"
    if not torch_api.cuda_initialized():
        return f"CUDA is not initialised, so {device} holds nothing yet"
    journal = _native_journal(device)
    if not isinstance(journal, str):
        return CudaJournal(device, journal)
    try:
        return SlowCudaJournal(device, journal)
    except RuntimeError as error:
        return f"the allocator of {device} has no statistics: {str(error).partition(chr(10))[0]}"


def _native_journal(device: Device) -> NativeJournal | str:
    backend = torch_api.allocator_backend()
    if backend != "native":
        return f"the allocator is {backend}"
    try:
        native = NativeRecorder.load()
    except RecorderUnavailable as error:
        return str(error).partition("\n")[0]
    return native.journal(DEVICE_TYPE, device.index or 0) or "this torch has no C++ counters (new in 2.9)"


def _of_all(stats: dict[str, Any], name: str, field: str) -> int:
    found = stats.get(name)
    return UNKNOWN if found is None else int(found["all"][field])
