"""The phases of a test, which share their boundaries: each is read once.

Most tests open no window of their own. Then no span is made, only the readings are kept until the test has ended, and
all equal windows are one object. Native code keeps them if it can read all recorders. As soon as anything else uses the
recorders in the test, such as a window or a wider fixture, the phases get the spans that they would have had from the
beginning. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.windows import SharedWindows, Window, growths
from cudamem_testing.recorders.base import Recorder
from cudamem_testing.windows.spans import Read, Span, growth_of, measured
from cudamem_testing.windows.tracker import Tracker

WHOLE = "test"
"""The name of the window of all phases."""
Gained = tuple[Recorder, int | None, int | None]


class Phases:
    """Those of one test.

    With ``spans`` they have them from the beginning: then their windows have the readings at their ends.
    """

    __slots__ = ("_ended", "_list", "_names", "_native", "_reads", "_shared", "_spans", "_tracker", "name")

    def __init__(self, tracker: Tracker, name: str, shared: SharedWindows, *, spans: bool = False) -> None:
        self.name = name
        """That of the current phase, empty after the last one."""
        self._list: list[Window] = []
        self._tracker = tracker
        self._shared = shared
        self._names = [name]
        self._spans: list[Span] = []
        """Of the whole and of the current phase, once it is divided."""
        self._ended: tuple[Window, ...] | None = None
        self._reads: list[list[Read]] = []
        """At each boundary, unless native code keeps them."""
        with tracker.turn:
            native = None if spans or tracker.spans else tracker.boundaries()
            self._native = native if native is not None and native.read(0) else None
            if self._native is None:
                self._reads.append(tracker.readings())
            else:
                tracker.last = []
            tracker.undivided = self
            if spans or tracker.spans:  # a finalizer may have opened one meanwhile
                self._take_over()
                tracker.fold(self._reads[0])
                self.divide()

    def next(self, name: str) -> None:
        """Begin another phase with one reading."""
        tracker = self._tracker
        with tracker.turn:
            known: Iterable[Counters | None] = repeat(None)
            if self._native is not None:
                if self._native.read(len(self._names)):
                    self._names.append(name)
                    self.name = name
                    return
                known = self._take_over()
            reads = tracker.readings(known)  # a finalizer that runs meanwhile may divide it
            if not tracker.sees_all:  # the phase that ends may have missed something, others not
                self.divide()
            if self._spans:
                tracker.fold(reads)
                phase = self._spans[1]
                self._ended = tracker.continued(phase, name, reads) if name else tracker.ended(phase, reads)
                self._list += self._ended
            else:
                self._reads.append(reads)
                self._names.append(name)
            self.name = name

    def end(self) -> None:
        """The last phase has ended."""
        self.next("")

    def close(self, *, fresh: bool) -> tuple[tuple[Window, ...], tuple[Window, ...]]:
        """The test has ended: the windows of phases and of what ran in them, and those of the whole.

        Not ``fresh``: until the last reading.
        """
        tracker = self._tracker
        with tracker.turn:  # another thread may divide it until now
            if fresh:
                self.divide()
            if self._spans:
                whole = tracker.close(self._spans[0], fresh=fresh)
                return self._shared.of(self._list), whole
            tracker.undivided = None
            native, shared = self._native, self._shared
            key = None if native is None else (*self._names, native.key())
            found = None if key is None else shared.tests.get(key)
            if found is None:
                self._take_over()
                found = shared.of(self._windows(self._names[:-1])), shared.of(self._windows([WHOLE]))
                if key is not None:
                    shared.add(key, found)
            self._native = None  # it keeps the readings of the next test from here on
        self._list += found[0]
        return found

    @property
    def windows(self) -> list[Window]:
        """Those of phases that have ended, and of what ran in them: whoever asks may add more."""
        self.divide()
        return self._list

    @property
    def ended(self) -> tuple[Window, ...]:
        """The windows of the phase that has ended last."""
        self._take_over()
        if self._ended is not None:
            return self._ended
        return tuple(self._windows(self._names[-2:-1], len(self._reads) - 2))

    def growths(self) -> list[tuple[str, int]]:
        """Names and bytes of the growth in the phase that has ended last, as :func:`~.model.windows.growths`."""
        native = self._native
        return growths(self.ended) if native is None else native.grown()

    @property
    def whole(self) -> Span:
        """The span of all phases."""
        self.divide()
        return self._spans[0]

    def divide(self) -> None:
        """Make the spans, unless that is done or the test has ended."""
        tracker = self._tracker
        with tracker.turn, CollectorPaused():  # what a finalizer reads must reach the spans
            if tracker.undivided is not self:
                return
            tracker.undivided = None
            begun = self._take_over()
            reads = self._reads
            self._list += self._windows(self._names[:-1])
            if len(reads) > 1:
                self._ended = self.ended
            spans = [Span(WHOLE, False, reads[0])]
            for later in reads[1:]:
                for recorder, counters in later:
                    spans[0].levels[recorder].fold(counters)
            if self.name:
                spans.append(Span(self.name, False, reads[-1]))
            self._spans = spans
            tracker.resume(spans, reads[-1])
            found = zip(tracker.recorders, begun, strict=False)
            tracker.fold([(recorder, counters) for recorder, counters in found if counters is not None])

    def gained(self, *, fresh: bool = True) -> list[Gained]:
        """The growth of bytes and blocks on each device since the first phase began, up to now or the last reading."""
        with self._tracker.turn:
            if self._native is not None and not fresh:
                gained = zip(self._tracker.recorders, self._native.gained(), strict=True)
                return [(recorder, size, blocks) for recorder, (size, blocks) in gained]
            now = self._tracker.boundary() if fresh else self._tracker.last
            starts = dict(self._reads[0])
            for span in self._spans[:1]:
                starts = {one: level.start for one, level in span.levels.items()}
        found: list[Gained] = []
        for recorder, counters in now:
            start = starts.get(recorder)
            if start is not None:
                grown = growth_of(start.allocated, counters.allocated)
                found.append((recorder, grown, growth_of(start.blocks, counters.blocks)))
        return found

    def _take_over(self) -> Iterable[Counters | None]:
        """Keep the readings here from now on, and not in native code.

        Returns what that has read of each device at another boundary; ``None`` for those that Python has to read.
        """
        with self._tracker.turn, CollectorPaused():  # a finalizer may ask for all readings
            if self._native is None:
                return repeat(None)
            read, complete = self._native.counters(), len(self._names)
            self._reads += map(self._tracker.readings, read[:complete])
            self._native = None
        return chain(*read[complete:], repeat(None))

    def _windows(self, names: Sequence[str], first: int = 0) -> list[Window]:
        """The windows of phases from a boundary on, on each device; that of the whole is between the first and last."""
        found, reads = [], self._reads
        for number, name in enumerate(names, first):
            begin, end = (0, len(reads) - 1) if name is WHOLE else (number, number + 1)
            for place, (recorder, start) in enumerate(reads[begin]):
                readings = [one[place][1] for one in reads[begin + 1 : end + 1]]
                found.append(self._shared.known[measured(name, recorder.device, start, readings, readings[-1])])
        return found
