"""Replaces torch's functions for the statistics of cards while windows read them.

The allocator has one set of peaks per device, and a reset affects all readers. Two kinds of virtual
views make that safe. Ours: before any reset, the peaks are passed to every reader, so that a window
never loses one. The test's: what our own resets hide is added back when the test reads its statistics. Both rely on
replacing the functions of ``torch._C`` that every spelling of the Python API looks up at each call. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cudamem_testing import torch_api
from cudamem_testing.guards import Function, Patches, stand_in
from cudamem_testing.recorders.peaks import Levels, Peaks, Stats, peaks_of

if TYPE_CHECKING:
    from cudamem_testing.recorders.native_device import NativeDevice

Counts = tuple[int, int, int]
NOTHING: Counts = (0, 0, 0)
READERS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
PEAK_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
COUNT_RESETS = ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats")


class Reader:
    """One of those who read the statistics of cards."""

    __slots__ = ("alone", "cards", "lost")

    def __init__(self) -> None:
        self.lost: dict[int, Peaks] = {}
        """Peaks of each card that others have reset since it read."""
        self.cards: dict[int, NativeDevice | None] = {}
        """What reads each card natively, which keeps the peaks that are already hidden."""
        self.alone: dict[int, NativeDevice] = {}
        """What reads each card where nothing has to be added, while there is no other reader and no debt."""

    def end_alone(self, index: int) -> None:
        """Something has to be added to what is read of a card from here on."""
        card = self.alone.pop(index, None)
        if card is not None:
            card.set_alone(False)


class Views:
    """The replacements for torch's functions, for all readers of a process."""

    def __init__(self, bindings: ModuleType) -> None:
        self._read: Function = getattr(bindings, READERS[0])
        self.reset: Function = getattr(bindings, PEAK_RESETS[0])
        self.readers: list[Reader] = []
        self.hidden: dict[int, Peaks] = {}  # read just before a reader reset the peaks
        self.counted: dict[int, Counts] = {}  # counts that the test reset
        self._debts: list[tuple[int, Callable[[], Levels]]] = []  # other code that resets the peaks of a card
        self._patches = Patches()
        for names, replacement in (
            (READERS, self._memory_stats),
            (PEAK_RESETS, self._reset_peaks),
            (COUNT_RESETS, self._reset_counts),
        ):
            for name in names:
                self._patches.replace(bindings, name, partial(partial, replacement))

    @classmethod
    def in_place(cls) -> Views:
        """The active views, or new ones."""
        bindings = torch_api.bindings()
        replacement = stand_in(getattr(bindings, READERS[0], None))
        owner = getattr(replacement.func, "__self__", None) if isinstance(replacement, partial) else None
        return owner if isinstance(owner, cls) else cls(bindings)

    def read(self, index: int) -> Stats:
        self.settle(index)
        stats: Stats = self._read(index)
        return stats

    def owe(self, index: int, take: Callable[[], Levels]) -> Callable[[], None]:
        """Take peaks that other code resets from now on; returns what takes them a last time and ends this."""
        debt = (index, take)
        self._debts.append(debt)
        self._end_alone(index)

        def pay() -> None:
            self.settle(index)
            self._debts.remove(debt)

        return pay

    def settle(self, index: int) -> None:
        """Take peaks that other code reset, for the test's view and for every reader."""
        for card, take in self._debts:
            if card == index and (taken := take()):
                self.tell(index, taken)

    def tell(self, index: int, levels: Levels, but: Reader | None = None) -> None:
        """Keep peaks that are reset for the test's view, and for every reader but the one that resets them."""
        self.hidden.setdefault(index, Peaks()).keep(levels)
        for reader in self.readers:
            if reader is not but:
                reader.lost.setdefault(index, Peaks()).keep(levels)
                reader.end_alone(index)

    def join(self) -> Reader:
        """A new reader."""
        for other in self.readers:
            for index in [*other.alone]:
                other.end_alone(index)
        reader = Reader()
        self.readers.append(reader)
        return reader

    def is_alone(self, index: int) -> bool:
        """Whether there is one reader, nothing else resets the peaks of a card, and its counts were never reset."""
        return len(self.readers) == 1 and index not in self.counted and all(card != index for card, _ in self._debts)

    def _end_alone(self, index: int) -> None:
        for reader in self.readers:
            reader.end_alone(index)

    def leave(self, reader: Reader) -> None:
        """A reader ends; torch's functions are restored when none needs the replacements."""
        self.readers = [other for other in self.readers if other is not reader]
        for index in [*reader.alone]:
            reader.end_alone(index)
        for index in [index for index, hidden in self.hidden.items() if not self._is_hidden(index, hidden)]:
            self._show(index)
        self._restore_if_idle()

    def _show(self, index: int) -> None:
        """Hide nothing of a card any more."""
        self.hidden.pop(index, None)
        for reader in self.readers:
            card = reader.cards.get(index)
            if card is not None:
                card.forget()

    def _is_hidden(self, index: int, hidden: Peaks) -> bool:
        try:
            return hidden.exceed(self._read(index))
        except Exception:  # a card that has failed shows nothing
            return False

    def _restore_if_idle(self) -> None:
        if not self.readers and not self.hidden:
            self._patches.restore()

    def _memory_stats(self, original: Function, index: int, *rest: Any) -> Stats:
        self.settle(index)
        stats: Stats = original(index, *rest)
        hidden = self.hidden.get(index)
        if hidden is not None:
            hidden.raise_in(stats)
        return stats

    def _reset_peaks(self, original: Function, index: int, *rest: Any) -> Any:
        stats = self._before_reset(index)
        if stats is not None:
            self.tell(index, peaks_of(stats))
            self._show(index)
            self._restore_if_idle()
        return original(index, *rest)

    def _reset_counts(self, original: Function, index: int, *rest: Any) -> Any:
        stats = self._before_reset(index)
        if stats is not None:
            now, before = counts(stats), self.counted.get(index, NOTHING)
            self.counted[index] = (before[0] + now[0], before[1] + now[1], before[2] + now[2])
            self._end_alone(index)
        return original(index, *rest)

    def _before_reset(self, index: int) -> Stats | None:
        """The statistics; ``None`` if unavailable: then the test's own call says why."""
        try:
            stats: Stats = self.read(index)
        except Exception:
            return None
        return stats


def counts(stats: Stats) -> Counts:
    """Blocks and segments allocated, and retries, since the counts were last reset."""
    return (
        stats["allocation"]["all"]["allocated"],
        stats["segment"]["all"]["allocated"],
        stats["num_alloc_retries"],
    )
