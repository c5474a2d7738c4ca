"""Asks the model what settings, emptied caches and smaller pools would have changed. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cudamem_testing.model.allocator_settings import AllocatorSettings
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.snapshots.fragmentation import fragmentation
from cudamem_testing.snapshots.record import Recording
from cudamem_testing.snapshots.whatif.job import LARGE_SEGMENT, Capacity, Prepared, prepare, segment_size
from cudamem_testing.snapshots.whatif.model import Job, Ran, run

MIB = 2**20
#: Sizes in MiB that are tried for ``max_split_size_mb``; torch wants more than 20.
SPLITS = (32, 64, 128, 256, 512, 1024)
EXPANDABLE = "expandable_segments:True"
_POOLS_UNKNOWN = (
    "the history does not say in which pool an event was (torch does from 2.12 on): "
    "blocks of private pools whose memory was returned count in the main pool"
)
#: The result says that the model differs from the record if its peak is off by a larger share.
WELL = 0.05

Kind = Literal["start", "setting", "call", "pool"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one change comes to, in bytes.

    The most that is reserved until the request, or with it if it fits, is from ``peak_reserved`` to ``at_most``: it may
    depend on where that lies which was live before the first event, and on how much can be reserved, if these are not
    known. ``fits`` is ``None`` where it depends on one of them, or no request failed.
    ``earlier`` is the recorded event at which it would have run out of memory before that, ``None`` if it would not.
    ``largest_free`` and ``unused`` are of the main pool at the end.
    """

    kind: Kind
    what: str
    peak_reserved: int
    at_most: int
    reserved: int
    fits: bool | None
    largest_free: int
    unused: int
    earlier: int | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Answers, and how far the model can be trusted.

    ``recorded`` is the most that was reserved in the record, ``model`` what the model makes of the same settings;
    ``before`` are the bytes that were live before the first event, ``events`` the number of replayed ones.
    ``requested`` is what failed, ``None`` where nothing did; ``contradicted`` is whether the model with the recorded
    settings has room for it, so that no answer about it can be relied on. ``notes`` say what the record lacks.
    """

    recorded: int
    model: int
    before: int
    events: int
    capacity: Capacity | None
    requested: int | None
    answers: tuple[Answer, ...]
    contradicted: bool = False
    notes: tuple[str, ...] = ()

    @property
    def reliable(self) -> bool:
        """Whether the model agrees with the record well enough for its answers."""
        return abs(self.off) <= WELL and not self.contradicted

    @property
    def off(self) -> float:
        """By which share the model's peak is above that of the record."""
        return self.model / self.recorded - 1 if self.recorded else 0.0

    @property
    def best(self) -> Answer | None:
        """The change with which the request fits and least is reserved; where none failed, the one that saves most.

        A setting must do better than the same settings from the same start, or it is not what helped. There is none if
        the model does not agree with the record.
        """
        if not self.reliable:
            return None
        asked = [one for one in self.answers if one.kind != "start" and one.earlier is None and self._helps(one)]
        return min(asked, key=lambda one: one.at_most, default=None)

    def _helps(self, one: Answer) -> bool:
        start = next((other for other in self.answers if other.kind == "start" and one.kind == "setting"), None)
        if self.requested is not None:
            return one.fits is True and (start is None or not start.fits)
        return one.at_most < self.recorded and (start is None or one.peak_reserved < start.peak_reserved)


def what_if(
    recording: Recording,
    capacity: int | None = None,
    more: Sequence[AllocatorSettings] = (),
    step: Callable[[str], None] = lambda words: None,
    prepared: Prepared | None = None,
) -> WhatIf:
    """Ask for the usual changes and for ``more`` settings; ``step`` is called with what is replayed next.

    ``capacity`` is what the process can reserve, in bytes, if it is known better than the record tells; ``prepared`` is
    the job for it, if it was made before.

    Raises:
        RecorderUnavailable: the model cannot be compiled here; the message says what is missing.
        ValueError: the recording has no events, or is not of a card.
    """
    if prepared is None:
        prepared = prepare(recording, capacity)
    asking = _Asking(recording, prepared, step)
    same = asking.run(prepared.job, prepared.settings)
    answers = [*asking.usual(), *(asking.setting(one) for one in more)]
    requested = None if prepared.failed is None else recording.events.sizes[prepared.failed]
    return WhatIf(
        prepared.peak_reserved,
        same.peak_reserved,
        prepared.before,
        len(prepared.job.did),
        prepared.capacity,
        requested,
        tuple(answers),
        requested is not None and same.fits is True,
        notes=(_POOLS_UNKNOWN,) if recording.pools and recording.events.pools is None else (),
    )


class _Asking:
    def __init__(self, recording: Recording, prepared: Prepared, step: Callable[[str], None]) -> None:
        self._recording = recording
        self._prepared = prepared
        self._step = step
        self._packed = prepared.packed() if prepared.before else prepared.job
        self._known: dict[tuple[int, AllocatorSettings], tuple[Job, Ran]] = {}

    def usual(self) -> Iterator[Answer]:
        """The state at the start, expandable segments, the best limit of splits, an emptied cache, pools."""
        settings, job = self._prepared.settings, self._prepared.job
        if self._prepared.before:
            words = "the same settings, live blocks of before without gaps"
            yield self._answer("start", words, self._packed, settings)
        if not settings.expandable:
            expandable = settings.named(expandable_segments="True")
            yield self.setting(settings._replace(text=expandable, expandable=True))
            splits = [_split(settings, size) for size in SPLITS if size * MIB != settings.max_split]
            yield self.setting(min(splits, key=self._rank))
        low = low_points(self._prepared)
        if low:
            empties = tuple(sorted({*job.empties, *((place, 0) for place in low)}))
            words = f"empty_cache() at {count(len(low), 'low point')} of memory"
            yield self._answer("call", words, replace(job, empties=empties), settings)
        yield from self._pools()

    def setting(self, settings: AllocatorSettings) -> Answer:
        """The answer for other settings from the start of the process.

        Where blocks of before the record would lie is not known: without gaps, and in their segments, are both tried.
        """
        recorded = self._answer("setting", settings.text, self._prepared.job, settings)
        if not self._prepared.before:
            return recorded
        packed = self._answer("setting", settings.text, self._packed, settings)
        both = packed, recorded
        alike = packed.fits == recorded.fits and (packed.earlier is None) == (recorded.earlier is None)
        return replace(
            packed,
            peak_reserved=min(one.peak_reserved for one in both),
            at_most=max(one.at_most for one in both),
            fits=packed.fits if alike else None,
            largest_free=max(one.largest_free for one in both),
            earlier=min(packed.earlier, recorded.earlier)
            if packed.earlier is not None and recorded.earlier is not None
            else None,
        )

    def _rank(self, settings: AllocatorSettings) -> tuple[bool, bool, int]:
        """Less for settings that do better from a start without gaps."""
        one = self._answer("setting", settings.text, self._packed, settings)
        return one.fits is not True, one.earlier is not None, one.peak_reserved

    def _pools(self) -> Iterator[Answer]:
        job, private = self._prepared.job, len(self._recording.pools)
        if private > 1 and job.pools is not None:
            segments = job.segments[:]
            for row in range(3, len(segments), 6):
                segments[row] = min(segments[row], 1)
            shared = replace(job, pools=array("q", [min(pool, 1) for pool in job.pools]), segments=segments)
            words = f"one private pool for all instead of {private}"
            yield self._answer("pool", words, shared, self._prepared.settings)
        unused = sum(pool.free for pool in fragmentation(self._recording).private)
        if unused and job.capacity is not None:
            words = f"private pools without the {format_size(unused)} that they do not use"
            larger = replace(job, capacity=job.capacity + unused)
            answer = self._answer("pool", words, larger, self._prepared.settings)
            least, most = answer.peak_reserved - unused, answer.at_most - unused
            yield replace(answer, peak_reserved=least, at_most=most, reserved=answer.reserved - unused)

    def run(self, job: Job, settings: AllocatorSettings, what: str = "") -> Ran:
        """What a replay comes to; one whose outcome is known already is not made again."""
        plain = settings._replace(text="", max_split=settings.max_split if _matters(settings, job) else 0)
        key = id(job), plain
        if key not in self._known:
            if what:
                self._step(f"replaying {len(job.did):,} events with {what}")
            self._known[key] = job, run(job, plain)  # with the job, so that its id stays its own
        return self._known[key][1]

    def _answer(self, kind: Kind, what: str, job: Job, settings: AllocatorSettings) -> Answer:
        ran = self.run(job, settings, what)
        fits, earlier, peaks = ran.fits, self._earlier(ran, job), [ran.peak_reserved]
        capacity = self._prepared.capacity
        if (fits is False or earlier is not None) and job.capacity is not None and capacity is not None:
            if capacity.below is None:
                fits = earlier = None
            elif not capacity.exact:  # with the most that it may be
                ran = self.run(replace(job, capacity=job.capacity + capacity.below - 1 - capacity.least), settings)
                earlier = self._earlier(ran, job)
                fits = None if ran.fits else False
                peaks.append(ran.peak_reserved)
        return Answer(kind, what, min(peaks), max(peaks), ran.reserved, fits, ran.largest_free, ran.unused, earlier)

    def _earlier(self, ran: Ran, job: Job) -> int | None:
        if ran.first_failed is None:
            return None
        place = ran.first_failed - (len(job.did) - len(self._prepared.job.did))
        return self._prepared.positions[place] if place >= 0 else 0


def _matters(settings: AllocatorSettings, job: Job) -> bool:
    """Whether the limit of splits is reached by any block: a segment is as large as a request, or has a usual size."""
    largest = max(job.sizes, default=0)
    largest = 1 << largest.bit_length() if any(settings.divisions) else segment_size(largest)
    return settings.expandable or settings.max_split <= max(LARGE_SEGMENT, largest, max(job.segments[1::6], default=0))


def _split(settings: AllocatorSettings, size: int) -> AllocatorSettings:
    return settings._replace(text=settings.named(max_split_size_mb=str(size)), max_split=size * MIB)


def low_points(prepared: Prepared) -> tuple[int, ...]:
    """Events of the job at which memory is lowest between two highs: where a step of training ends.

    A low lies between two highs if the memory falls to it and rises from it by at least half of all that it varies.
    """
    totals = prepared.allocated.totals[: prepared.end + 1]
    least, most = min(totals), max(totals)
    half = (most - least) / 2
    if half < 2 * MIB:
        return ()
    found: list[int] = []
    high, low, place = totals[0], totals[0], 0
    falling = False
    for moment, total in enumerate(totals):
        if falling:
            if total < low:
                low, place = total, moment
            elif total - low >= half:
                found.append(place)
                falling, high = False, total
        elif total > high:
            high = total
        elif high - total >= half:
            falling, low, place = True, total, moment
    positions = prepared.positions
    return tuple(dict.fromkeys(bisect_left(positions, moment) for moment in found))
