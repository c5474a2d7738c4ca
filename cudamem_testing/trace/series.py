"""Series: the timeline of one device as columns of bytes, one for each category, for pictures, pages and queries.

There is a sample after every change, so that no peak is between two samples. Where fewer are needed (a picture is a
thousand pixels wide), the samples are thinned so that the highest of each stretch stays. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from cudamem_testing.trace.categories import UNKNOWN, Category
from cudamem_testing.trace.changes import Action, MemoryChange
from cudamem_testing.trace.places import region_name
from cudamem_testing.trace.records import PythonCall, Storage, Trace

NAMES = (*(category.name for category in Category), UNKNOWN)
_COLUMN: dict[Category | None, int] = {
    None: len(Category),
    **{category: place for place, category in enumerate(Category)},
}


class NamedSpan(NamedTuple):
    """A named stretch of the timeline, nanoseconds since its start."""

    name: str
    start: int
    end: int
    depth: int = 0
    """The number of stretches around it."""


@dataclass(frozen=True, slots=True)
class Series:
    """Bytes by category on one device, after every change."""

    device: str
    times: array[int]
    """Nanoseconds since the start of the timeline; 0 for what existed before."""
    sizes: Mapping[str, array[int]]
    """By category: bytes at each time."""
    totals: array[int]
    spans: tuple[NamedSpan, ...] = ()
    """Annotations of the main thread, in order of their starts."""

    @property
    def peak(self) -> int:
        """The index of the highest total, the first of equals; -1 without samples."""
        return self.totals.index(max(self.totals)) if self.totals else -1

    def at(self, place: int) -> dict[str, int]:
        """Bytes by category after a change; categories without any are left out."""
        return {name: column[place] for name, column in self.sizes.items() if column[place]}

    def highest(self, start: int, end: int) -> int:
        """The index of the highest total from one time to another, including what exists at its start; -1 for none."""
        first = max(bisect_right(self.times, max(start, 0)) - 1, 0)
        last = max(bisect_left(self.times, end), first + 1)
        span = self.totals[first:last]
        return first + span.index(max(span)) if span else -1

    def thinned(self, most: int = 2000) -> Series:
        """About as many samples as given: the first and the highest of each of equal stretches, and always the last."""
        count = len(self.times)
        if count <= most:
            return self
        bounds = [count * place // (most // 2) for place in range(most // 2 + 1)]
        kept = {count - 1, *bounds[:-1]}
        for first, last in pairwise(bounds):
            kept.add(max(range(first, last), key=self.totals.__getitem__))
        order = sorted(kept)

        def chosen(column: array[int]) -> array[int]:
            return array("q", [column[place] for place in order])

        sizes = {name: chosen(column) for name, column in self.sizes.items()}
        return Series(self.device, chosen(self.times), sizes, chosen(self.totals), self.spans)

    def to_dict(self, most: int = 2000) -> dict[str, Any]:
        """The series as plain JSON types: nanoseconds and bytes; categories that never hold anything are left out."""
        thin = self.thinned(most)
        peak = thin.peak
        return {
            "device": self.device,
            "times": list(thin.times),
            "sizes": {name: list(column) for name, column in thin.sizes.items() if any(column)},
            "peak": None if peak < 0 else {"time": thin.times[peak], "bytes": thin.totals[peak]},
            "regions": [span._asdict() for span in self.spans],
        }


def series(changes: Iterable[MemoryChange], trace: Trace, start: int, device: str) -> Series:
    """The columns of one device; ``start`` is that of the timeline on the profiler's clock."""
    times: array[int] = array("q")
    columns: list[array[int]] = [array("q") for _ in NAMES]
    sums: array[int] = array("q")
    now: dict[Storage, tuple[int, int]] = {}
    sizes, total = [0] * len(NAMES), 0
    for time, action, place, nbytes, storage, _, category, _, _ in changes:
        if place != device:
            continue
        column = _COLUMN[category]
        if action is Action.DESTROY:
            if storage is not None:
                column, nbytes = now.pop(storage)
            sizes[column] -= nbytes
            total -= nbytes
        elif action is Action.INCREMENT_VERSION:
            if storage is None or storage not in now:
                continue  # a contradiction in the trace: written while it did not exist
            before, nbytes = now[storage]
            sizes[before] -= nbytes
            sizes[column] += nbytes
            now[storage] = column, nbytes
        else:
            sizes[column] += nbytes
            total += nbytes
            if storage is not None:
                now[storage] = column, nbytes
        times.append(max(time - start, 0))
        sums.append(total)
        for one, size in zip(columns, sizes, strict=True):
            one.append(size)
    spans = tuple(_spans(trace, start))
    return Series(device, times, dict(zip(NAMES, columns, strict=True)), sums, spans)


def _spans(trace: Trace, start: int) -> Iterator[NamedSpan]:
    depths: list[int] = []
    for region in trace.regions:
        depths.append(0 if region.parent < 0 else depths[region.parent] + 1)
        if region.thread == trace.main:
            yield NamedSpan(region_name(region.name), region.start - start, region.end - start, depths[-1])


def module_spans(trace: Trace, start: int, depth: int = 1) -> Iterable[NamedSpan]:
    """The calls of modules on the thread of the first one, ``depth`` levels of them, by the names of their classes."""
    ends: list[int] = []
    main: int | None = None
    for event in trace.events:
        if not isinstance(event, PythonCall) or event.owner is None or event.owner.is_optimizer:
            continue
        main = event.thread if main is None else main
        if event.thread != main:
            continue
        while ends and ends[-1] <= event.start:
            ends.pop()
        if len(ends) < depth:
            yield NamedSpan(event.owner.name, event.start - start, event.end - start, len(ends))
        ends.append(event.end)
