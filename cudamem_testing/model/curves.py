"""Curves: the memory of one test over time, by line or by category, and what was live at its peak.

A curve has at most ``MOST_POINTS`` points and ``MOST_BANDS`` named bands, however long the test was: it is made to be
kept in a report and drawn. Bytes everywhere. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Stack

MOST_POINTS = 400
MOST_BANDS = 10
MOST_STACKS = 200

#: What the bytes of a band or a part belong to: a line of code, a category, all smaller lines together, what was live
#: before the test, blocks without a stack, or what the allocator counted beyond its blocks.
Origin = Literal["project", "library", "category", "rest", "before", "stackless", "rounding"]


@dataclass(frozen=True, slots=True)
class Band:
    """The bytes of one owner over time; ``steps`` are pairs of a point's place and the bytes from there on."""

    label: str
    origin: Origin
    steps: tuple[tuple[int, int], ...] = ()

    def sizes(self, points: int) -> list[int]:
        """The bytes at each of so many points."""
        found: list[int] = []
        size = 0
        for place, bytes_ in self.steps:
            found += [size] * (place - len(found))
            size = bytes_
        return found + [size] * (points - len(found))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A named stretch from one point to another: a phase of the test, a region, a module."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks of one stack that were live at the peak, or of one reason (``label``) that has none."""

    bytes: int
    blocks: int
    stack: Stack | None = None
    label: str = ""
    origin: Origin = "project"


@dataclass(frozen=True, slots=True)
class Curve:
    """The memory of one device during one test.

    ``moments`` are numbers of events, ``times`` microseconds since the first of them (``None`` where the record has no
    clock); both have an entry a point. ``peak`` is the place of the point with most bytes in the call, ``live`` what
    was live there, by stack, largest first. ``events`` is how many events there were, of which ``notes`` say what is
    missing. ``by`` says what the bands are.
    """

    device: Device
    by: Literal["line", "category"]
    moments: tuple[int, ...]
    times: tuple[int, ...] | None
    bands: tuple[Band, ...]
    stretches: tuple[Stretch, ...] = ()
    peak: int = 0
    live: tuple[Part, ...] = ()
    events: int = 0
    notes: tuple[str, ...] = ()

    @property
    def totals(self) -> list[int]:
        """The bytes of all bands at each point."""
        columns = [band.sizes(len(self.moments)) for band in self.bands]
        return [sum(column) for column in zip(*columns, strict=True)] if columns else [0] * len(self.moments)

    def thinned(self, points: int, stacks: int) -> Curve:
        """The same with fewer points and parts; the peak and the ends of stretches stay."""
        if len(self.moments) <= points and len(self.live) <= stacks:
            return self
        live = self.live if len(self.live) <= stacks else (*self.live[:stacks], _rest(self.live[stacks:]))
        kept = [*range(len(self.moments))]
        if len(kept) > points:
            fixed = {self.peak, *(end for one in self.stretches for end in (one.first, one.last))}
            kept = chosen(self.totals.__getitem__, len(kept), points, fixed)
        place = {old: new for new, old in enumerate(kept)}
        bands = tuple(
            Band(band.label, band.origin, steps_of([sizes[old] for old in kept]))
            for band, sizes in ((band, band.sizes(len(self.moments))) for band in self.bands)
        )
        return replace(
            self,
            moments=tuple(self.moments[old] for old in kept),
            times=None if self.times is None else tuple(self.times[old] for old in kept),
            bands=bands,
            stretches=tuple(Stretch(one.name, place[one.first], place[one.last]) for one in self.stretches),
            peak=place[self.peak],
            live=live,
        )


def _rest(parts: tuple[Part, ...]) -> Part:
    return Part(
        sum(part.bytes for part in parts), sum(part.blocks for part in parts), None, f"{len(parts)} more stacks", "rest"
    )


def steps_of(sizes: list[int]) -> tuple[tuple[int, int], ...]:
    """Only the points at which bytes change."""
    return tuple((place, size) for place, size in enumerate(sizes) if size != (sizes[place - 1] if place else 0))


def chosen(total: Callable[[int], int], number: int, most: int, fixed: set[int] | frozenset[int]) -> list[int]:
    """Places of about ``most`` of ``number`` points: the lowest and the highest of equal stretches, the ends, and the
    ``fixed`` ones, so that no high or low of the curve is lost.
    """
    if number <= most:
        return [*range(number)]
    buckets = max((most - len(fixed) - 2) // 2, 1)
    kept = {0, number - 1, *fixed}
    for bucket in range(buckets):
        span = range(number * bucket // buckets, number * (bucket + 1) // buckets)
        if span:
            kept.update((min(span, key=total), max(span, key=total)))
    return sorted(kept)
