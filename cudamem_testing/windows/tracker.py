"""Opens and closes nested spans over all recorders.

A recorder has one set of peaks, and each boundary of a span resets them. So at every boundary the peaks since the
last one are folded into every open span, so a parent's peak is at least each child's. Memory that a wider fixture
allocates or frees while it is set up or torn down belongs to the fixture: the spans around it are paused meanwhile, and
their levels are adjusted by its growth. Threads take turns: a peak that one has read must be folded before another one
ends a span. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, repeat

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.windows import Window, growth_names
from cudamem_testing.recorders.base import Recorder
from cudamem_testing.recorders.native import NativeRecorder
from cudamem_testing.recorders.native_boundaries import NativeBoundaries
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.windows.spans import LATE, Level, Read, Span, Undivided, move, sum_of

__tracebackhide__ = hide_wrong_arguments


class Tracker:
    """Opens and closes spans; one for a test session, or for one ``Memory`` outside pytest."""

    def __init__(self, recorders: Sequence[Recorder] = ()) -> None:
        self.recorders = tuple(recorders)
        """The active recorders."""
        self.spans: list[Span] = []
        """Those that are open."""
        self.last: list[Read] = []
        """What was read last, empty if native code has read it."""
        self.sees_all = True
        """Whether no recorder may have missed something by then."""
        self._folded: dict[Recorder, Counters] = {}
        self._sources: list[object | None] = []
        self._boundaries: NativeBoundaries | None = None
        self.turn = threading.RLock()  # reentrant: a finalizer may end a span during work on the same thread
        """Held by the thread that uses the recorders."""
        self.undivided: Undivided | None = None
        """The phases of the running test, until something else opens or reads a span: then they get spans."""

    def attach(self, recorders: Sequence[Recorder]) -> None:
        """Add recorders; spans that are open now end without numbers for their devices, and say why."""
        if self.undivided is not None:
            self.undivided.divide()
        self.recorders += tuple(recorders)

    def open(self, name: str, *, exclusive: bool = False) -> Span:
        """Start a span. An exclusive one (a wider fixture's) is not counted in the spans around it."""
        with self.turn:
            span = Span(name, exclusive, self.boundary())
            self._start(span)
            return span

    def close(self, span: Span, *, fresh: bool = True) -> tuple[Window, ...]:
        """End a span; returns one window for each device. Not ``fresh``: uses the numbers of the last read."""
        with self.turn:
            return self.ended(span, self.boundary() if fresh else self.last)

    def continued(self, span: Span, name: str, reads: Sequence[Read]) -> tuple[Window, ...]:
        """End a span, and start it again under the name of what follows, with what was read and folded."""
        windows = self.ended(span, reads)
        span.name, span.notes, span.still = name, (), 0
        for recorder, counters in reads:
            span.levels[recorder] = Level(counters)
        self._start(span)
        return windows

    def resume(self, spans: Sequence[Span], reads: Sequence[Read]) -> None:
        """Take over spans that began earlier, and have what was read until ``reads``."""
        self.spans += spans
        self._folded.update(reads)

    def peek(self, span: Span) -> tuple[Window, ...]:
        """The window up to now; the span stays open."""
        with self.turn:
            return self._windows(span, self.boundary())

    def exclude_freed(self, span: Span, device: Device, freed: int, blocks: int, label: str) -> None:
        """Leave out bytes and blocks that others had during a whole span and have freed now; ``label`` says whose."""
        self.peek(span)  # the peaks so far have them
        for recorder, level in span.levels.items():
            if recorder.device == device:
                start = level.start
                level.start = start._replace(
                    allocated=sum_of(start.allocated, -freed), blocks=sum_of(start.blocks, -blocks)
                )
                level.allocated_peak = sum_of(level.allocated_peak, -freed)
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
            self.boundary()
            counters = self.known(recorder)
        if counters is None:
            raise RuntimeError(f"{recorder.device} is not measured now: {recorder.incomplete}")
        return counters

    def known(self, recorder: Recorder) -> Counters | None:
        """The last reading of a recorder; ``None`` if it was not read."""
        last: Iterable[tuple[Recorder, Counters | None]] = self.last
        if not self.last and self._boundaries is not None:  # native code has read, and keeps it until the next test
            last = zip(self.recorders, chain(*self._boundaries.counters()[-1:]), strict=False)
        return next((counters for other, counters in last if other is recorder), None)

    def boundaries(self) -> NativeBoundaries | None:
        """What reads all recorders at the boundaries of a test; ``None`` if one of them has to be read in Python."""
        sources = [recorder.source for recorder in self.recorders]
        if sources != self._sources:
            self._sources, self._boundaries = sources, None
            if sources and None not in sources:
                names = chain.from_iterable(growth_names(recorder.device) for recorder in self.recorders)
                self._boundaries = NativeRecorder.load().boundaries(sources, [*names])
        return self._boundaries

    def readings(self, known: Iterable[Counters | None] = repeat(None)) -> list[Read]:
        """Read every recorder that is awake and reset its peaks, but for those of which a reading is known; the caller
        folds them.
        """
        reads: list[Read] = []
        sees_all = True
        for recorder, counters in zip(self.recorders, known, strict=False):
            if counters is None:
                counters = recorder.read_and_reset_peaks()
            if counters is not None:
                reads.append((recorder, counters))
                if recorder.incomplete is not None:
                    sees_all = False
        self.last, self.sees_all = reads, sees_all
        return reads

    def fold(self, reads: Sequence[Read]) -> None:
        """Raise the peaks of every open span to those that were read."""
        for recorder, counters in reads:
            if counters is self._folded.get(recorder):  # nothing has changed: open spans have it, or started with it
                continue
            self._folded[recorder] = counters
            for span in tuple(self.spans):  # a finalizer may end one
                level = None if span.still else span.levels.get(recorder)
                if level is not None:
                    level.fold(counters)

    def boundary(self) -> list[Read]:
        """Read, and fold what was read."""
        if self.undivided is not None:
            self.undivided.divide()
        reads = self.readings()
        self.fold(reads)
        return reads

    def _start(self, span: Span) -> None:
        if span.exclusive:
            for outer in self.spans:
                outer.still += 1
        self.spans.append(span)

    def ended(self, span: Span, reads: Sequence[Read]) -> tuple[Window, ...]:
        """As :meth:`close`, with what was read and folded."""
        place = self.spans.index(span)
        del self.spans[place]
        if span.exclusive:
            for outer in self.spans[:place]:
                outer.still -= 1
                move(outer, span, reads)
        return self._windows(span, reads)

    @staticmethod
    def _windows(span: Span, reads: Sequence[Read]) -> tuple[Window, ...]:
        """The span's window on each device."""
        windows: list[Window] = []
        for recorder, now in reads:
            level = span.levels.get(recorder)
            if level is None:
                windows.append(Window(span.name, recorder.device, complete=False, notes=(LATE,)))
            else:
                windows.append(level.window(span.name, recorder, now, span.notes))
        return tuple(windows)
