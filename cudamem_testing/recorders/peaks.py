"""Keeps the peaks of an allocator's statistics when they are reset. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
