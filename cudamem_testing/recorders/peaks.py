"""Keeps the peaks of an allocator's statistics when they are reset. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cudamem_testing import torch_api
from cudamem_testing.guards import Function, Patches

Stats = dict[str, Any]
Slot = tuple[Any, ...]
Levels = Mapping[Slot, int]


class Peaks:
    """The highest kept value of every peak of some statistics.

    Statistics are dictionaries of numbers, most of them split by pool. One is kept at most boundaries, so they are
    flattened: about 40 numbers, where the dictionaries would have to be walked, and be walked by the garbage collector.
    """

    __slots__ = ("_highest",)

    def __init__(self) -> None:
        self._highest: dict[Slot, int] = {}

    def keep(self, levels: Levels) -> None:
        """Raise the kept values to these peaks."""
        highest = self._highest
        if not highest:
            highest.update(levels)
            return
        for place, level in levels.items():
            if level > highest.get(place, -1):
                highest[place] = level

    def above(self, place: Slot, level: int) -> int:
        """The level, or the kept value if that is higher."""
        return max(level, self._highest.get(place, level))

    def raise_in(self, stats: Stats) -> None:
        """Raise the peaks of ``stats`` to the kept values; skips missing entries."""
        for values, highest in self._lower(stats):
            values["peak"] = highest

    def exceed(self, stats: Stats) -> bool:
        """Whether a peak of ``stats`` is lower than its kept value."""
        return any(True for _ in self._lower(stats))

    def _lower(self, stats: Stats) -> Iterator[tuple[dict[str, int], int]]:
        """The entries whose peak is lower than the kept value, with that value."""
        for place, highest in self._highest.items():
            values: Any = stats
            for name in place:
                values = values.get(name) if isinstance(values, dict) else None
            if isinstance(values, dict) and values.get("peak", highest) < highest:
                yield values, highest


def peaks_of(stats: Stats) -> Levels:
    """All peaks of some statistics, by position."""
    found: dict[Slot, int] = {}
    inside: list[tuple[Slot, Stats]] = [((), stats)]
    while inside:
        place, values = inside.pop()
        for name, value in values.items():
            if isinstance(value, dict):
                at = (*place, name)
                if "peak" in value:
                    found[at] = value["peak"]
                else:
                    inside.append((at, value))
    return found


class SharedPeaks:
    """The statistics of one allocator whose peaks we and the code under test both read and reset.

    Neither loses a peak to the other: what our resets hide is added back when others read, and what their resets would
    lose is kept for us. ``reader`` and ``reset`` are names of functions of torch, ``arguments`` what they are called
    with for this allocator; calls with others pass through.
    """

    def __init__(self, reader: str, reset: str, started: Callable[[], bool], *arguments: object) -> None:
        self._started = started
        self._arguments = arguments
        self.lost: Peaks | None = None
        """What other code has reset since the last ``take``."""
        self.on_reset: Callable[[], None] | None = None
        """Called when other code resets peaks."""
        self._hidden: Peaks | None = None
        self._patches = Patches()
        bindings = torch_api.bindings()
        self._read: Function = getattr(bindings, reader)
        self._reset: Function = getattr(bindings, reset)
        self._patches.replace(bindings, reader, self._reading)
        self._patches.replace(bindings, reset, self._resetting)

    def peek(self) -> Stats:
        """The current statistics; nothing is reset."""
        stats: Stats = self._read(*self._arguments)
        return stats

    def take(self, stats: Stats, at_rest: bool) -> bool:
        """Reset our peaks unless ``stats`` are at rest, and raise them to what others have reset; whether at rest."""
        if not at_rest:
            self._hidden = self._hidden or Peaks()
            self._hidden.keep(peaks_of(stats))
            self._reset(*self._arguments)
        if self.lost is not None:
            self.lost.raise_in(stats)
            self.lost, at_rest = None, False
        return at_rest

    def close(self) -> None:
        """Restore torch's functions."""
        self._patches.restore()

    def _reading(self, original: Function) -> Function:
        def read_statistics(*arguments: Any) -> Stats:
            stats: Stats = original(*arguments)
            if self._hidden is not None and arguments[: len(self._arguments)] == self._arguments:
                self._hidden.raise_in(stats)
            return stats

        return read_statistics

    def _resetting(self, original: Function) -> Function:
        def reset_peaks(*arguments: Any) -> Any:
            if arguments[: len(self._arguments)] == self._arguments and self._started():
                self.lost = self.lost or Peaks()
                self.lost.keep(peaks_of(self.peek()))
                self._hidden = None
                if self.on_reset is not None:
                    self.on_reset()
            return original(*arguments)

        return reset_peaks
