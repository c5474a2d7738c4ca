"""Peaks of an allocator's statistics, kept while somebody resets the allocator's own. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Stats = dict[str, Any]
Place = tuple[str, ...]


class Peaks:
    """The highest that every peak of some statistics had when it was kept.

    Statistics are dictionaries of numbers, most of them split by pool. One is kept at most boundaries, so they are
    flattened: about 40 numbers, where the dictionaries would have to be walked, and be walked by the garbage collector.
    One reader gives the same keys each time.
    """

    __slots__ = ("_highest", "_places")

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._highest: list[int] = []

    def keep(self, stats: Stats) -> None:
        """Raise what is kept to the peaks of ``stats``."""
        if not self._places:
            self._places = [*_places(stats)]
        now = [(stats[place[0]] if len(place) == 1 else stats[place[0]][place[1]])["peak"] for place in self._places]
        self._highest = list(map(max, self._highest, now)) if self._highest else now

    def raise_in(self, stats: Stats) -> None:
        """Raise the peaks of ``stats`` to what is kept; places that it does not have are passed over."""
        for values, highest in self._lower(stats):
            values["peak"] = highest

    def exceed(self, stats: Stats) -> bool:
        """Whether a peak of ``stats`` is lower than what is kept."""
        return any(True for _ in self._lower(stats))

    def _lower(self, stats: Stats) -> Iterator[tuple[dict[str, int], int]]:
        """The values whose peak is lower than what is kept, with that."""
        for place, highest in zip(self._places, self._highest, strict=True):
            values: Any = stats
            for name in place:
                values = values.get(name) if isinstance(values, dict) else None
            if isinstance(values, dict) and values.get("peak", highest) < highest:
                yield values, highest


def _places(stats: Stats) -> Iterator[Place]:
    for name, value in stats.items():
        if isinstance(value, dict):
            if "peak" in value:
                yield (name,)
            yield from ((name, pool) for pool, part in value.items() if isinstance(part, dict) and "peak" in part)
