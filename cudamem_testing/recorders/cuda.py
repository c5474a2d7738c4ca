"""Measures CUDA through the caching allocator's counters, also if others read them or reset peaks (``views.py``).

If the native library has been compiled for this torch, windows read through it, in a tenth of the time, with the
same results. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from cudamem_testing import torch_api
from cudamem_testing.model.counters import PEAKS, ZERO, Counters
from cudamem_testing.recorders.base import Taken, WithoutOwners
from cudamem_testing.recorders.capture import CudaCapture
from cudamem_testing.recorders.native import NativeRecorder
from cudamem_testing.recorders.peaks import Levels, Peaks, Stats, peaks_of
from cudamem_testing.recorders.stats_patches import NOTHING, Counts, Views, counts

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.failing import Wanted
    from cudamem_testing.model.outside import OutsideUse
    from cudamem_testing.model.stacks import RawFrame
    from cudamem_testing.recorders.base import Trap
    from cudamem_testing.recorders.capture import Refusal
    from cudamem_testing.recorders.history import CudaHistory
    from cudamem_testing.recorders.native_device import NativeDevice

NATIVE_ONLY = ("requested_bytes", "active_bytes", "allocation", "segment", "num_alloc_retries")
PEAKED = ("allocated_bytes", "requested_bytes", "reserved_bytes", "active_bytes")  # in the order of PEAKS
DEVICE_TYPE = 1  # of c10::DeviceType


class CudaStatistics:
    """A reader of the allocator's statistics on all devices, with its own peaks: those since it last read.

    There can be several readers (nested sessions); none takes a peak from another or from the test: if their
    resets still hide a peak when the last one is closed, torch's functions keep adding it back until the test resets
    its peaks.
    """

    def __init__(self) -> None:
        self._views: Views | None = Views.in_place()
        self._reader = self._views.join()
        self.alone = self._reader.alone
        """By card what reads as ``count`` does, as long as nothing has to be added to what it returns."""

    def read(self, index: int) -> tuple[Stats, Counts]:
        """The statistics with the peaks since the last read, and the counts that were reset; resets the peaks."""
        views = self._at_work()
        stats = views.read(index)
        lost = self._reader.lost.pop(index, None)
        if not _at_rest(stats):
            views.tell(index, peaks_of(stats), but=self._reader)
            views.reset(index)
        if lost is not None:
            lost.raise_in(stats)
        return stats, views.counted.get(index, NOTHING)

    def count(self, index: int) -> Counters | None:
        """Like ``read``, in one call of the native library; ``None`` if only ``read`` can do it."""
        views, reader = self._at_work(), self._reader
        try:
            card = reader.cards[index]
        except KeyError:
            card = reader.cards[index] = native_card(index)
        if card is None:
            return None
        views.settle(index)
        found = card.read(every=len(views.readers) > 1)
        if found is None:
            return None
        counters, hidden = found
        if hidden:
            views.tell(index, hidden, but=reader)
        counters = _with_counted(counters, views.counted.get(index, NOTHING))
        lost = reader.lost.pop(index, None)
        if lost is not None:
            counters = _with_peaks(counters, lost)
        if views.is_alone(index):
            reader.alone[index] = card
            card.set_alone(True)
        return counters

    def peek(self, index: int) -> Stats:
        """The current statistics; nothing is reset."""
        return self._at_work().read(index)

    def owe(self, index: int, take: Callable[[], Levels]) -> Callable[[], None]:
        """Let other code reset the peaks of a card, and pass the lost peaks on to all readers.

        ``take`` returns the highest peaks since its last call. Returns a function that takes them a last time and ends
        this.
        """
        return self._at_work().owe(index, take)

    def close(self) -> None:
        """Stop reading; with the last reader torch's own functions are restored. Closing again does nothing."""
        views, self._views = self._views, None
        if views is not None:
            views.leave(self._reader)

    def _at_work(self) -> Views:
        if self._views is None:
            raise RuntimeError("these CUDA statistics were closed")
        return self._views


class CudaRecorder(WithoutOwners):
    """One card; of all that share a history, the one that ``leads`` starts and stops it."""

    incomplete: str | None = None

    def __init__(
        self,
        device: Device,
        statistics: CudaStatistics,
        backend: str = "native",
        history: CudaHistory | None = None,
        *,
        leads: bool = True,
    ) -> None:
        self.device = device
        self._index = device.index or 0
        self._statistics = statistics
        self._native = backend == "native"
        self._notes: tuple[str, ...] = (
            () if self._native else (f"allocator {backend} counts allocated and reserved bytes only",)
        )
        self.tells_blocks = self.has_pools = self._native
        self.tells_storages = backend == "cudaMallocAsync"
        self.why_untold = next(iter(self._notes), None)
        self._limits: list[tuple[int, int | None]] = []  # bytes allowed, bytes at the start
        self._before: tuple[int, int | None] = (0, None)  # the same without them
        self._history = history
        self._led = history if leads else None
        self._alone = statistics.alone
        self._started = False
        self._released = 0  # bytes of workspaces, at the last release
        self._bases: dict[int, int | None] = {} if history is None else history.bases

    @property
    def keeps_events(self) -> bool:
        """Whether the history is ours."""
        return self._history is not None and self._history.ours

    @property
    def source(self) -> object | None:
        """The card's native counters, as long as nothing has to be added to them."""
        card = self._alone.get(self._index)
        return None if card is None else card.source

    def wake(self, *, limited: bool) -> None:
        """Start a separate history for the test."""
        if self._led is not None:
            self._led.start()

    def sleep(self) -> None:
        """Stop the history."""
        if self._led is not None:
            self._led.stop()

    def pause(self) -> Callable[[], None]:
        """Pause the history, which restarts without earlier events."""
        self.sleep()
        return partial(self.wake, limited=False)

    def finish(self) -> None:
        """Synchronise the card; does nothing before CUDA is initialised."""
        if torch_api.cuda_initialized():
            torch_api.synchronize(self._index)

    def workspace_sizes(self) -> frozenset[int]:
        """Sizes that cuBLAS and cuBLASLt may allocate; none before CUDA is initialised."""
        return torch_api.workspace_sizes() if torch_api.cuda_initialized() else frozenset()

    def release(self) -> None:
        """Free cuBLAS workspaces, and shared CUDA memory that other processes have released."""
        if torch_api.cuda_initialized():
            before = self._now("allocated_bytes")
            torch_api.clear_workspaces()
            self._released = before - self._now("allocated_bytes")

    def retake(self) -> None:
        """Let cuBLAS allocate its workspaces for the current stream: those of this thread; and where more was released
        than these, those of the thread in which backward passes run.
        """
        if not torch_api.cuda_initialized():
            return
        before = self._now("allocated_bytes")
        torch_api.take_workspaces(self._index)
        if self._now("allocated_bytes") - before < self._released:
            torch_api.take_workspaces(self._index, backward=True)

    def _now(self, name: str) -> int:
        """Bytes of one kind now; 0 where a custom allocator has no statistics."""
        with suppress(RuntimeError):
            return int(self._statistics.peek(self._index)[name]["all"]["current"])
        return 0

    def outside(self) -> OutsideUse | None:
        """From NVML or CUDA, minus what is reserved; ``None`` before CUDA starts, or simulated."""
        if not torch_api.cuda_initialized() or torch_api.simulated_cards():
            return None
        from cudamem_testing.recorders.outside import read

        return read(self.device, self._now("reserved_bytes"))

    def capture(self) -> CudaCapture | None:
        """The allocator's snapshot; ``None`` if no history was requested."""
        return None if self._history is None else self._history.capture(self.device)

    def refusal(self) -> Refusal | None:
        """The last out-of-memory error of this card, with the snapshot taken before it unwound anything."""
        return None if self._history is None else self._history.refusal(self.device)

    def live(self) -> CudaCapture | None:
        """The blocks of the allocator's snapshot, without events."""
        if self._history is None:
            return None
        from cudamem_testing.torch_api.graphs import fast_snapshot

        segments = fast_snapshot() if torch_api.cuda_initialized() else []
        return CudaCapture(self.device, {"segments": segments, "device_traces": []})

    def operators(self) -> Trap:
        """Counted by a dispatch mode."""
        from cudamem_testing.recorders.dispatch_trap import counting

        return counting(self._taken)

    def trap(self, wanted: Wanted, after: Trap | None = None) -> Trap:
        """On a simulated card its allocator fails; on a card an operator, see :mod:`.dispatch_trap`."""
        simulated = torch_api.simulated_trap()
        if simulated is not None:
            from cudamem_testing.recorders.native_trap import NativeTrap

            put = partial(simulated.put, self._index)
            return NativeTrap(put, simulated.read, simulated.clear, wanted, self._frames_of_failure)
        if not self._native:
            raise RuntimeError(f"no allocation can be made to fail: {self.why_untold}")
        from cudamem_testing.recorders.dispatch_trap import DispatchTrap

        return DispatchTrap(self._taken, wanted, after if isinstance(after, DispatchTrap) else None)

    def _taken(self) -> Taken:
        stats = self._statistics.peek(self._index)
        return Taken(stats["allocation"]["all"]["allocated"], stats["requested_bytes"]["all"]["allocated"])

    def _frames_of_failure(self, number: int) -> list[RawFrame]:
        """Those of the last out-of-memory error in the history."""
        if self._history is None:
            return []
        traces = self._history.capture(self.device).snapshot["device_traces"]
        events = traces[self._index] if self._index < len(traces) else []
        last: dict[str, Any] = next((event for event in reversed(events) if event["action"] == "oom"), {})
        return [(one["filename"], one["line"], one["name"]) for one in last.get("frames", ())]

    def read_and_reset_peaks(self) -> Counters:
        """One C call, which resets peaks if needed; if nothing has changed, the same object is returned.

        Zeros, without a call, before CUDA is initialised.
        """
        card = self._alone.get(self._index)
        found = None if card is None else card.read_alone()
        return self._read_with_others() if found is None else found

    def _read_with_others(self) -> Counters:
        """The same, with what others have reset, and passing on what it resets."""
        if not self._started:
            if not torch_api.cuda_initialized():
                return ZERO
            self._started = True
        try:
            return (self._statistics.count(self._index) if self._native else None) or self._read()
        except RuntimeError as error:  # a custom allocator need not have any
            return Counters(notes=(f"the allocator has no statistics: {str(error).partition(chr(10))[0]}",))

    def _read(self) -> Counters:
        """The same through torch's own function."""
        stats, counted = self._statistics.read(self._index)
        allocated = stats["allocated_bytes"]["all"]
        reserved = stats["reserved_bytes"]["all"]
        missing = [name for name in NATIVE_ONLY if name not in stats]
        if missing or not self._native:
            return Counters(
                allocated=allocated["current"],
                allocated_peak=allocated["peak"],
                reserved=reserved["current"],
                reserved_peak=reserved["peak"],
                notes=self._notes or (f"this torch does not count {', '.join(missing)}",),
            )
        requested, active = stats["requested_bytes"]["all"], stats["active_bytes"]["all"]
        counters = Counters(
            allocated["current"],
            allocated["peak"],
            requested["current"],
            requested["peak"],
            reserved["current"],
            reserved["peak"],
            active["current"],
            active["peak"],
            *counts(stats),
            stats["allocation"]["all"]["current"],
        )
        return _with_counted(counters, counted)

    def limit(self, size: int) -> Callable[[], None]:
        """Limit through the fraction of the card that torch may reserve.

        Cached segments are freed first, so that the limit takes effect; the allocator takes segments of 2 MiB and more,
        so the limit is exact to the next segment, not to the byte.
        """
        total = torch_api.total_memory(self._index)
        if not self._limits:
            self._before = (round(torch_api.memory_fraction(self._index) * total), self._bases.get(self._index))
        torch_api.empty_cache()
        taken: int = self._statistics.peek(self._index)["reserved_bytes"]["all"]["current"]
        limit = taken + size, taken
        self._allow(min((*self._limits, limit, self._before), key=_allowed), total)
        self._limits.append(limit)

        def lift() -> None:
            self._limits.remove(limit)
            self._allow(min((*self._limits, self._before), key=_allowed), total)

        return lift

    def _allow(self, limit: tuple[int, int | None], total: int) -> None:
        """Add half a byte, because the allocator drops the fraction of a byte when it computes the limit."""
        size, base = limit
        torch_api.set_memory_fraction(self._index, min(1.0, (size + 0.5) / total))
        self._bases[self._index] = base

    def close(self) -> None:
        """Nothing to close: the statistics are shared by all cards and closed with them."""


def _allowed(limit: tuple[int, int | None]) -> int:
    return limit[0]


def native_card(index: int) -> NativeDevice | None:
    """The counters of a card through the native library; ``None`` if it is not compiled, or does not have them.

    Call it once CUDA is initialised: until then another allocator can replace torch's.
    """
    if torch_api.allocator_backend() != "native":
        return None
    native = NativeRecorder.load_if_compiled()
    return None if native is None else native.device(DEVICE_TYPE, index)


def _at_rest(stats: Stats) -> bool:
    """Whether the peaks equal the current levels: then there is nothing to reset."""
    for name in PEAKED:
        values = stats.get(name, {}).get("all")
        if values is not None and values["peak"] != values["current"]:
            return False
    return True


def _with_peaks(counters: Counters, lost: Peaks) -> Counters:
    """The counters with the peaks that others have reset."""
    raised: dict[str, Any] = {
        field: lost.above((name, "all"), getattr(counters, field)) for field, name in zip(PEAKS, PEAKED, strict=True)
    }
    return counters._replace(**raised)


def _with_counted(counters: Counters, counted: Counts) -> Counters:
    """The counters as if the counts had not been reset."""
    if counted is NOTHING:
        return counters
    allocations, segments, retries = counted
    return counters._replace(
        allocations=(counters.allocations or 0) + allocations,
        segments=(counters.segments or 0) + segments,
        retries=(counters.retries or 0) + retries,
    )
