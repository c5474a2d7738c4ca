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
#: The result says that the model differs from the record if its peak is off by a larger share.
WELL = 0.05

Kind = Literal["start", "setting", "call", "pool"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one change comes to, in bytes.

    ``peak_reserved`` is the most that is reserved until the request, or with it if it fits. ``fits`` is ``None``
    where no request failed or what the process may reserve is not known well enough. ``earlier`` is the recorded
    event at which it would have run out of memory before that, ``None`` if it would not. ``largest_free`` and
    ``unused`` are of the main pool at the end.
    """

    kind: Kind
    what: str
    peak_reserved: int
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
    settings has room for it, so that no answer about it can be relied on.
    """

    recorded: int
    model: int
    before: int
    events: int
    capacity: Capacity | None
    requested: int | None
    answers: tuple[Answer, ...]
    contradicted: bool = False

    @property
    def off(self) -> float:
        """By which share the model's peak is above that of the record."""
        return self.model / self.recorded - 1 if self.recorded else 0.0

    @property
    def best(self) -> Answer | None:
        """The change with which the request fits and least is reserved; where none failed, the one that saves most.

        A setting must do better than the same settings from the same start, or it is not what helped.
        """
        asked = [one for one in self.answers if one.kind != "start" and one.earlier is None and self._helps(one)]
        return min(asked, key=lambda one: one.peak_reserved, default=None)

    def _helps(self, one: Answer) -> bool:
        start = next((other for other in self.answers if other.kind == "start" and one.kind == "setting"), None)
        if self.requested is not None:
            return one.fits is True and (start is None or not start.fits) and not self.contradicted
        return one.peak_reserved < (self.recorded if start is None else start.peak_reserved)


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
    )


class _Asking:
    def __init__(self, recording: Recording, prepared: Prepared, step: Callable[[str], None]) -> None:
        self._recording = recording
        self._prepared = prepared
        self._step = step
        self._packed = prepared.packed()
        self._known: dict[tuple[int, AllocatorSettings], tuple[Job, Ran]] = {}

    def usual(self) -> Iterator[Answer]:
        """The state at the start, expandable segments, the best limit of splits, an emptied cache, pools."""
        settings, job = self._prepared.settings, self._prepared.job
        if self._prepared.before:
            words = "the same settings, live blocks of before without gaps"
            yield self._answer("start", words, self._packed, settings)
        if not settings.expandable:
            yield self.setting(replace(settings, text=EXPANDABLE, expandable=True))
            splits = [self.setting(_split(settings, size)) for size in SPLITS if size * MIB != settings.max_split]
            yield min(splits, key=lambda one: (one.fits is not True, one.earlier is not None, one.peak_reserved))
        low = low_points(self._prepared)
        if low:
            empties = tuple(sorted({*job.empties, *((place, 0) for place in low)}))
            words = f"empty_cache() at {count(len(low), 'low point')} of memory"
            yield self._answer("call", words, replace(job, empties=empties), settings)
        yield from self._pools()

    def setting(self, settings: AllocatorSettings) -> Answer:
        """The answer for other settings from the start of the process."""
        return self._answer(
            "setting", settings.text, self._packed if self._prepared.before else self._prepared.job, settings
        )

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
            yield replace(answer, peak_reserved=answer.peak_reserved - unused, reserved=answer.reserved - unused)

    def run(self, job: Job, settings: AllocatorSettings) -> Ran:
        """What a replay comes to; one whose outcome is known already is not made again."""
        plain = replace(settings, text="", max_split=settings.max_split if _matters(settings, job) else 0)
        key = id(job), plain
        if key not in self._known:
            self._known[key] = job, run(job, plain)  # with the job, so that its id stays its own
        return self._known[key][1]

    def _answer(self, kind: Kind, what: str, job: Job, settings: AllocatorSettings) -> Answer:
        self._step(f"replaying {len(job.did):,} events with {what}")
        ran = self.run(job, settings)
        fits, earlier = ran.fits, self._earlier(ran, job)
        capacity = self._prepared.capacity
        if (fits is False or earlier is not None) and job.capacity is not None and capacity is not None:
            if capacity.below is None:
                fits = earlier = None
            elif not capacity.exact:  # with the most that it may be
                ran = self.run(replace(job, capacity=job.capacity + capacity.below - 1 - capacity.least), settings)
                earlier = self._earlier(ran, job)
                fits = None if ran.fits else False
        return Answer(kind, what, ran.peak_reserved, ran.reserved, fits, ran.largest_free, ran.unused, earlier)

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
    return replace(settings, text=f"max_split_size_mb:{size}", max_split=size * MIB)


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
