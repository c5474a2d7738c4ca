"""Spans over all recorders: where each started, the highest peaks since, and the windows that they become.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.windows import Window
from cudamem_testing.recorders.base import Recorder

Read = tuple[Recorder, Counters]
_new = tuple.__new__  # takes a third of the time of a named tuple's own
_NOTHING_ELSE = (None,) * 7
MOVED = ("allocated", "requested", "reserved", "active", "allocations", "segments", "retries", "blocks")
LATE = "torch was first imported inside this window"


class Undivided(Protocol):
    """What needs no spans as long as nothing else has one."""

    def divide(self) -> None:
        """Make the spans that it would have."""


class Span:
    """An open window; close it with the tracker that opened it."""

    __slots__ = ("exclusive", "levels", "name", "notes", "still")

    def __init__(self, name: str, exclusive: bool, reads: Sequence[Read] = ()) -> None:
        self.name = name
        self.exclusive = exclusive
        self.levels: dict[Recorder, Level] = {}
        self.notes: tuple[str, ...] = ()
        self.still = 0  # number of exclusive spans open inside
        for recorder, counters in reads:
            self.levels[recorder] = Level(counters)


class Level:
    """One span on one device: where it started, and the highest peaks seen since."""

    __slots__ = ("allocated_peak", "opened", "requested_peak", "reserved_peak", "start")

    def __init__(self, start: Counters) -> None:
        self.opened = start
        self.start = start
        self.allocated_peak = start.allocated
        self.requested_peak = start.requested
        self.reserved_peak = start.reserved

    def fold(self, counters: Counters) -> None:
        """The highest peaks since it started; what was unknown once stays unknown. Written out: it runs often."""
        _, allocated, _, requested, _, reserved, _, _, _, _, _, _, _ = counters
        known = self.allocated_peak
        if known is not None and (allocated is None or allocated > known):
            self.allocated_peak = allocated
        known = self.requested_peak
        if known is not None and (requested is None or requested > known):
            self.requested_peak = requested
        known = self.reserved_peak
        if known is not None and (reserved is None or reserved > known):
            self.reserved_peak = reserved

    def window(self, name: str, recorder: Recorder, now: Counters, notes: tuple[str, ...]) -> Window:
        """The window from the start until now."""
        peaks = None, self.allocated_peak, None, self.requested_peak, None, self.reserved_peak, *_NOTHING_ELSE
        peaks_only = (_new(Counters, peaks),)
        fields = measured(name, recorder.device, self.start, peaks_only, now, recorder.incomplete, notes)
        return _new(Window, (*fields, self.opened, now))

    def move(self, inner: Counters, now: Counters) -> int | None:
        """Move the level by the growth from ``inner`` to ``now``; returns the growth of allocated bytes."""
        growth = {name: growth_of(getattr(inner, name), getattr(now, name)) for name in MOVED}
        moved: dict[str, Any] = {name: sum_of(getattr(self.start, name), by) for name, by in growth.items()}
        self.start = self.start._replace(**moved)
        self.allocated_peak = sum_of(self.allocated_peak, growth["allocated"])
        self.requested_peak = sum_of(self.requested_peak, growth["requested"])
        self.reserved_peak = sum_of(self.reserved_peak, growth["reserved"])
        return growth["allocated"]


def measured(
    name: str,
    device: Device,
    start: Counters,
    readings: Iterable[Counters],
    now: Counters,
    incomplete: str | None = None,
    notes: tuple[str, ...] = (),
) -> tuple[Any, ...]:
    """The fields of a window, without the readings at its ends: they tell whether two windows are equal.

    ``readings`` have the peaks since its start. ``incomplete`` is why it may have missed something.
    """
    # Several are made for every test, so: few calls, and no named tuple.
    allocated, _, requested, _, reserved, _, _, _, allocations, segments, retries, blocks, _ = start
    end, _, _, _, _, _, _, _, allocations_now, segments_now, retries_now, blocks_now, notes_now = now
    highest, highest_requested, highest_reserved = allocated, requested, reserved
    for _, peak, _, requested_peak, _, reserved_peak, _, _, _, _, _, _, _ in readings:  # as in `Level.fold`
        if highest is not None and (peak is None or peak > highest):
            highest = peak
        if highest_requested is not None and (requested_peak is None or requested_peak > highest_requested):
            highest_requested = requested_peak
        if highest_reserved is not None and (reserved_peak is None or reserved_peak > highest_reserved):
            highest_reserved = reserved_peak
    return (
        name,
        device,
        allocated,
        highest,
        end,
        requested,
        highest_requested,
        reserved,
        highest_reserved,
        None if allocated is None or end is None else end - allocated,
        None if allocations is None or allocations_now is None else allocations_now - allocations,
        None if segments is None or segments_now is None else segments_now - segments,
        None if retries is None or retries_now is None else retries_now - retries,
        None if blocks is None or blocks_now is None else blocks_now - blocks,
        incomplete is None,
        notes_now if incomplete is None and not notes else (*notes_now, *filter(None, (incomplete,)), *notes),
    )


def move(outer: Span, inner: Span, reads: Iterable[Read]) -> None:
    """Leave out of a span what an exclusive one inside it has changed."""
    for recorder, now in reads:
        before, level = inner.levels.get(recorder), outer.levels.get(recorder)
        if before is None or level is None or before.start is now:  # the last: nothing has changed
            continue
        growth = level.move(before.start, now)
        if growth:
            outer.notes += (f"{inner.name} changed {recorder.device} by {format_size(growth)}, not counted here",)


def growth_of(before: int | None, after: int | None) -> int | None:
    """The difference of two numbers that may be unknown."""
    return None if before is None or after is None else after - before


def sum_of(value: int | None, by: int | None) -> int | None:
    """The sum of two numbers that may be unknown."""
    return None if value is None or by is None else value + by
