"""Opens and closes nested spans over all recorders.

A recorder has one set of peaks, and each boundary of a span resets them. So at every boundary the peaks since the
last one are folded into every open span, so a parent's peak is at least each child's. Memory that a wider fixture
allocates or frees while it is set up or torn down belongs to the fixture: the spans around it are paused meanwhile, and
their levels are adjusted by its growth. Threads take turns: a peak that one has read must be folded before another one
ends a span. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.windows import Window
from cudamem_testing.recorders.base import Recorder
from cudamem_testing.show.usage import hide_wrong_arguments

__tracebackhide__ = hide_wrong_arguments

Read = tuple[Recorder, Counters]
_new = tuple.__new__  # takes a third of the time of a named tuple's own
MOVED = ("allocated", "requested", "reserved", "active", "allocations", "segments", "retries", "blocks")
LATE = "torch was first imported inside this window"


class Span:
    """An open window; close it with the tracker that opened it."""

    __slots__ = ("exclusive", "levels", "name", "notes", "still")

    def __init__(self, name: str, exclusive: bool, reads: Sequence[Read] = ()) -> None:
        self.name = name
        self.exclusive = exclusive
        self.levels: dict[Recorder, _Level] = {}
        self.notes: tuple[str, ...] = ()
        self.still = 0  # number of exclusive spans open inside
        for recorder, counters in reads:
            self.levels[recorder] = _Level(counters)


class Tracker:
    """Opens and closes spans; one for a test session, or for one ``Memory`` outside pytest."""

    def __init__(self, recorders: Sequence[Recorder] = ()) -> None:
        self.recorders = tuple(recorders)
        """The active recorders."""
        self._open: list[Span] = []
        self._last: list[Read] = []
        self._folded: dict[Recorder, Counters] = {}
        self._still: dict[tuple[Recorder, str], Window] = {}
        self.turn = threading.RLock()  # reentrant: a finalizer may end a span during work on the same thread
        """Held by the thread that uses the recorders."""

    def attach(self, recorders: Sequence[Recorder]) -> None:
        """Add recorders; spans that are open now end without numbers for their devices, and say why."""
        self.recorders += tuple(recorders)

    def open(self, name: str, *, exclusive: bool = False) -> Span:
        """Start a span. An exclusive one (a wider fixture's) is not counted in the spans around it."""
        with self.turn:
            span = Span(name, exclusive, self._boundary())
            self._start(span)
            return span

    def open_nested(self, outer: str, inner: str) -> tuple[Span, Span]:
        """Start a span and another inside it with a single read."""
        with self.turn:
            reads = self._boundary()
            spans = Span(outer, False, reads), Span(inner, False, reads)
            self._open += spans
            return spans

    def close(self, span: Span, *, fresh: bool = True) -> tuple[Window, ...]:
        """End a span; returns one window for each device. Not ``fresh``: uses the numbers of the last read."""
        with self.turn:
            return self._end(span, self._boundary() if fresh else self._last)

    def switch(self, span: Span, name: str) -> tuple[Window, ...]:
        """End a span, and start it again under the name of what follows with a single read."""
        with self.turn:
            reads = self._boundary()
            innermost = self._open[-1] is span and not span.exclusive  # each phase of a test is: no other one changes
            windows = self._windows(span, reads) if innermost else self._end(span, reads)
            span.name, span.notes, span.still = name, (), 0
            for recorder, counters in reads:
                span.levels[recorder] = _Level(counters)
            if not innermost:
                self._start(span)
            return windows

    def peek(self, span: Span, *, fresh: bool = True) -> tuple[Window, ...]:
        """The window up to now, or up to the last read; the span stays open."""
        with self.turn:
            return self._windows(span, self._boundary() if fresh else self._last)

    def gained(self, span: Span, *, fresh: bool = True) -> list[tuple[Recorder, int | None, int | None]]:
        """The growth of bytes and blocks on each device since the span began, up to now or up to the last read."""
        found = []
        with self.turn:
            reads = self._boundary() if fresh else self._last
        for recorder, now in reads:
            level = span.levels.get(recorder)
            if level is not None:
                start = level.start
                bytes_, blocks = _growth(start.allocated, now.allocated), _growth(start.blocks, now.blocks)
                found.append((recorder, bytes_, blocks))
        return found

    def exclude_freed(self, span: Span, device: Device, freed: int, blocks: int, label: str) -> None:
        """Leave out bytes and blocks that others had during a whole span and have freed now; ``label`` says whose."""
        self.peek(span)  # the peaks so far have them
        for recorder, level in span.levels.items():
            if recorder.device == device:
                start = level.start
                level.start = start._replace(
                    allocated=_sum(start.allocated, -freed), blocks=_sum(start.blocks, -blocks)
                )
                level.allocated_peak = _sum(level.allocated_peak, -freed)
                span.notes += (f"{label} changed {device} by {format_size(-freed)}, not counted here",)

    def recorder(self, device: Device) -> Recorder:
        """The recorder of a measured device."""
        return next(one for one in self.recorders if one.device == device)

    def chosen(self, device: object) -> tuple[Recorder, ...]:
        """The recorders of any spelling of a device; of all devices but pseudo-devices for ``None``.

        Raises:
            ValueError: for an unknown device, and for one that is not measured.
        """
        wanted = None if device is None else Device.parse(device)
        recorders = tuple(
            recorder
            for recorder in self.recorders
            if (not recorder.device.pseudo if wanted is None else wanted.covers(recorder.device))
        )
        if not recorders:
            measured = ", ".join(str(recorder.device) for recorder in self.recorders) or "nothing"
            raise ValueError(f"{wanted or 'a device'} is not measured (measured: {measured})")
        return recorders

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record neither stacks nor events inside the block, such as a timing; numbers are counted as always."""
        with ExitStack() as stack:
            for recorder in self.recorders:
                stack.callback(recorder.pause())
            yield

    def read(self, recorder: Recorder) -> Counters:
        """The counters of one recorder; open spans lose no peak.

        Raises:
            RuntimeError: if the recorder is asleep.
        """
        with self.turn:
            self._boundary()
            counters = self.known(recorder)
        if counters is None:
            raise RuntimeError(f"{recorder.device} is not measured now: {recorder.incomplete}")
        return counters

    def known(self, recorder: Recorder) -> Counters | None:
        """The last reading of a recorder; ``None`` if it was not read."""
        return next((counters for other, counters in self._last if other is recorder), None)

    def _boundary(self) -> list[Read]:
        reads: list[Read] = []
        for recorder in self.recorders:
            counters = recorder.read_and_reset_peaks()
            if counters is None:
                continue
            reads.append((recorder, counters))
            if counters is self._folded.get(recorder):  # nothing has changed: open spans have it, or started with it
                continue
            self._folded[recorder] = counters
            _, allocated, _, requested, _, reserved, _, _, _, _, _, _, _ = counters
            for span in tuple(self._open):  # a finalizer may end one
                level = None if span.still else span.levels.get(recorder)
                if level is None:
                    continue
                # The highest peaks since it started; what was unknown once stays unknown. Written out: it runs often.
                known = level.allocated_peak
                if known is not None and (allocated is None or allocated > known):
                    level.allocated_peak = allocated
                known = level.requested_peak
                if known is not None and (requested is None or requested > known):
                    level.requested_peak = requested
                known = level.reserved_peak
                if known is not None and (reserved is None or reserved > known):
                    level.reserved_peak = reserved
        self._last = reads
        return reads

    def _start(self, span: Span) -> None:
        if span.exclusive:
            for outer in self._open:
                outer.still += 1
        self._open.append(span)

    def _end(self, span: Span, reads: list[Read]) -> tuple[Window, ...]:
        place = self._open.index(span)
        del self._open[place]
        if span.exclusive:
            for outer in self._open[:place]:
                outer.still -= 1
                _move(outer, span, reads)
        return self._windows(span, reads)

    def _windows(self, span: Span, reads: list[Read]) -> tuple[Window, ...]:
        """The span's window on each device; if nothing has changed, an earlier equal window of that name."""
        # Several are created for every test, so: no calls, and not the named tuple's slow constructor.
        windows: list[Window] = []
        for recorder, now in reads:
            level, incomplete = span.levels.get(recorder), recorder.incomplete
            if level is None:
                windows.append(Window(span.name, recorder.device, complete=False, notes=(LATE,)))
                continue
            still = level.start is now and not span.notes and incomplete is None
            if still:
                known = self._still.get((recorder, span.name))
                if known is not None and known.closed is now:
                    windows.append(known)
                    continue
            allocated, _, requested, _, reserved, _, _, _, allocations, segments, retries, blocks, _ = level.start
            end, _, _, _, _, _, _, _, allocations_now, segments_now, retries_now, blocks_now, notes = now
            fields = (
                span.name,
                recorder.device,
                allocated,
                level.allocated_peak,
                end,
                requested,
                level.requested_peak,
                reserved,
                level.reserved_peak,
                None if allocated is None or end is None else end - allocated,
                None if allocations is None or allocations_now is None else allocations_now - allocations,
                None if segments is None or segments_now is None else segments_now - segments,
                None if retries is None or retries_now is None else retries_now - retries,
                None if blocks is None or blocks_now is None else blocks_now - blocks,
                incomplete is None,
                notes if incomplete is None and not span.notes else (*notes, *filter(None, (incomplete,)), *span.notes),
                level.opened,
                now,
            )
            window = _new(Window, fields)
            if still:
                self._still[recorder, span.name] = window
            windows.append(window)
        return tuple(windows)


class _Level:
    """One span on one device: where it started, and the highest peaks seen since."""

    __slots__ = ("allocated_peak", "opened", "requested_peak", "reserved_peak", "start")

    def __init__(self, start: Counters) -> None:
        self.opened = start
        self.start = start
        self.allocated_peak = start.allocated
        self.requested_peak = start.requested
        self.reserved_peak = start.reserved

    def move(self, inner: Counters, now: Counters) -> int | None:
        """Move the level by the growth from ``inner`` to ``now``; returns the growth of allocated bytes."""
        growth = {name: _growth(getattr(inner, name), getattr(now, name)) for name in MOVED}
        moved: dict[str, Any] = {name: _sum(getattr(self.start, name), by) for name, by in growth.items()}
        self.start = self.start._replace(**moved)
        self.allocated_peak = _sum(self.allocated_peak, growth["allocated"])
        self.requested_peak = _sum(self.requested_peak, growth["requested"])
        self.reserved_peak = _sum(self.reserved_peak, growth["reserved"])
        return growth["allocated"]


def _move(outer: Span, inner: Span, reads: list[Read]) -> None:
    for recorder, now in reads:
        before, level = inner.levels.get(recorder), outer.levels.get(recorder)
        if before is None or level is None or before.start is now:  # the last: nothing has changed
            continue
        growth = level.move(before.start, now)
        if growth:
            outer.notes += (f"{inner.name} changed {recorder.device} by {format_size(growth)}, not counted here",)


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _sum(value: int | None, by: int | None) -> int | None:
    return None if value is None or by is None else value + by
