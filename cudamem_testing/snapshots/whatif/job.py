"""Makes the job of the model from a recording: its events until memory ran out, and what was live before the first.

A history does not say when the program emptied the cache, nor that the allocator did so by itself. Both show as
segments that are returned to the driver one after the other. It was the allocator, and the model does the same by
itself, if the request that follows takes a segment and could not without, or if only large segments are gone and the
allocator collects them (``garbage_collection_threshold``). It is taken to be the allocator if all are larger than
``max_split_size_mb`` and it is unknown how much could be reserved. Else it was the program.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, compress

from cudamem_testing.model.allocator_settings import INTERVALS, VARIABLES, AllocatorSettings
from cudamem_testing.model.pools import MAIN_POOL
from cudamem_testing.snapshots.lifetimes import Before, mask
from cudamem_testing.snapshots.record import Kind, Recording
from cudamem_testing.snapshots.replay import Replay, replay
from cudamem_testing.snapshots.rounding import LARGEST_SMALL, round_size
from cudamem_testing.snapshots.whatif.model import ALLOC, FREE_COMPLETED, FREE_REQUESTED, PROBE, Job

MIB = 2**20
GRAIN, SMALL_SEGMENT, LARGE_SEGMENT, OWN_SEGMENT = 2 * MIB, 2 * MIB, 20 * MIB, 10 * MIB
_TOOK = (Kind.SEGMENT_ALLOC, Kind.SEGMENT_MAP)
_GAVE = (Kind.SEGMENT_FREE, Kind.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a process can reserve, in bytes: at least ``least``, less than ``below`` if that is known.

    ``limited`` is whether a limit of torch was met (``set_per_process_memory_fraction``) and not the card's end.
    """

    least: int
    below: int | None = None
    limited: bool = False

    @property
    def exact(self) -> bool:
        """Whether it is known to the byte."""
        return self.below == self.least + 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job, the settings of the record, and what the record says about the same events.

    ``positions[i]`` is the number of the job's event ``i`` in the record. ``reserved`` is what was reserved before each
    event of the record, and at its end. ``failed`` is the event at which memory ran out, ``None`` if it did not.
    ``before`` is how many bytes were live before the first event. ``allocated`` and ``active`` are replays of it.
    """

    job: Job
    settings: AllocatorSettings
    positions: array[int]
    reserved: array[int]
    failed: int | None
    capacity: Capacity | None
    before: int
    allocated: Replay
    active: Replay

    @property
    def peak_reserved(self) -> int:
        """The most that was reserved in the record until it failed."""
        return max(self.reserved[: self.end + 1])

    @property
    def end(self) -> int:
        """The number of the record's events that are replayed."""
        return len(self.reserved) - 1 if self.failed is None else self.failed

    def packed(self) -> Job:
        """The same job with what was live before as if it had been allocated first, in the order of its addresses.

        For other settings, under which the segments of then would have been others.
        """
        rows = self.job.blocks
        segments = self.job.segments
        number = len(rows) // 4
        owners = [rows[4 * row + 3] for row in range(number)]
        pools = None
        if self.job.pools is not None:
            pools = array("q", [segments[6 * owner + 3] for owner in owners]) + self.job.pools
        streams = array("q", [segments[6 * owner + 2] for owner in owners])
        streams += self.job.streams if self.job.streams is not None else array("q", bytes(8 * len(self.job.did)))
        return replace(
            self.job,
            segments=array("q"),
            blocks=array("q"),
            did=bytes([ALLOC]) * number + self.job.did,
            addresses=rows[0::4] + self.job.addresses,
            sizes=rows[2::4] + self.job.sizes,
            streams=streams,
            pools=pools,
            empties=tuple((place + number, pool) for place, pool in self.job.empties),
        )


def failure(recording: Recording) -> int | None:
    """The event at which memory ran out for the last time; ``None`` if it never did."""
    place = recording.events.kinds.rfind(Kind.OOM)
    return None if place < 0 else place


def segment_size(size: int, *, expandable: bool = False) -> int:
    """Bytes that the allocator takes from the driver for a block of a rounded size, in bytes."""
    if expandable:
        step = SMALL_SEGMENT if size <= LARGEST_SMALL else LARGE_SEGMENT
        return -(-size // step) * step
    if size <= LARGEST_SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < OWN_SEGMENT else -(-size // GRAIN) * GRAIN


def prepare(recording: Recording, capacity: int | None = None, allocated: Replay | None = None) -> Prepared:
    """The job of a recording; ``capacity`` is what the process can reserve, in bytes, if the caller knows it.

    ``allocated`` is a replay of the recording that was made before.

    Raises:
        ValueError: the device has no caching allocator, or no events were recorded.
    """
    if not recording.device.is_card:
        raise ValueError(f"{recording.device} has no caching allocator: there is nothing to ask the model")
    events = recording.events
    if not len(events):
        raise ValueError("no events were recorded: there is nothing to replay")
    failed = failure(recording)
    end = len(events) if failed is None else failed
    reserved = reserved_course(recording)
    known = _capacity(recording, reserved, failed)
    if capacity is not None:
        known = Capacity(capacity, capacity + 1, known is not None and known.limited)
    allocated = replay(recording) if allocated is None else allocated
    active = replay(recording, "active", allocated)
    segments, blocks = _before(recording, active)
    kinds = bytearray(events.kinds[: end + (failed is not None)])
    requested = Kind.FREE_REQUESTED in events.kinds
    table = {Kind.ALLOC: ALLOC, Kind.FREE_REQUESTED: FREE_REQUESTED}
    table[Kind.FREE_COMPLETED] = FREE_COMPLETED if requested else FREE_REQUESTED
    wanted = bytes(int(code in table) for code in range(256))
    selected = bytearray(kinds.translate(wanted))
    codes = bytes(table.get(Kind(code), 0) if code in Kind._value2member_map_ else 0 for code in range(256))
    did = bytearray(kinds.translate(codes))
    if failed is not None:
        selected[failed], did[failed] = 1, PROBE
    positions = array("q", compress(range(len(selected)), selected))
    job = Job(
        segments=segments,
        blocks=blocks,
        did=bytes(compress(did, selected)),
        addresses=array("q", compress(events.addresses, selected)),
        sizes=array("q", compress(events.sizes, selected)),
        streams=None if events.streams is None else array("q", compress(events.streams, selected)),
        pools=_pools(recording, positions),
        pool_count=1 + len(recording.pools),
        capacity=None if known is None else known.least,
        limited=known is not None and known.limited,
        empties=tuple(
            (bisect_left(positions, place), pool) for place, pool in emptied(recording, reserved, end, known)
        ),
    )
    before = sum(blocks[1::4])
    settings = settings_of(recording)
    return Prepared(job, settings, positions, reserved, failed, known, before, allocated, active)


def settings_of(recording: Recording) -> AllocatorSettings:
    """The settings under which a recording was made."""
    settings = recording.settings
    raw = settings.raw or {}
    above = raw.get("garbage_collection_threshold")
    divisions = (*settings.roundup[:INTERVALS], *(0,) * (INTERVALS - len(settings.roundup)))
    text = raw.get("PYTORCH_CUDA_ALLOC_CONF")
    if not isinstance(text, str) or not text:
        text = f"max_split_size_mb:{settings.max_split_size // MIB}" if settings.max_split_size else ""
    try:
        rounding = AllocatorSettings.read({VARIABLES[0]: text}).max_unsplit_rounding
    except ValueError:
        rounding = 0
    return AllocatorSettings(
        text=text,
        expandable=settings.expandable,
        max_split=settings.max_split_size or 0,
        max_unsplit_rounding=rounding,
        collect_above=above if isinstance(above, float) and 0 <= above < 1 else 0.0,
        divisions=divisions,
    )


def reserved_course(recording: Recording) -> array[int]:
    """Reserved bytes before each event, and at the end."""
    events = recording.events
    end = sum(segment.size for segment in recording.segments)
    if not any(kind in events.kinds for kind in (*_TOOK, *_GAVE)):
        return array("q", [end]) * (len(events) + 1)
    signs = [0] * 256
    for kinds, sign in ((_TOOK, 1), (_GAVE, -1)):
        for kind in kinds:
            signs[kind] = sign
    changes = [signs[kind] * size for kind, size in zip(events.kinds, events.sizes, strict=True)]
    return array("q", accumulate(changes, initial=end - sum(changes)))


def _capacity(recording: Recording, reserved: array[int], failed: int | None) -> Capacity | None:
    if failed is None:
        return None
    free, size = recording.events.addresses[failed], recording.events.sizes[failed]
    needed = segment_size(round_size(size, recording.settings), expandable=recording.settings.expandable)
    if free < needed:
        return Capacity(reserved[failed] + free, reserved[failed] + free + 1)
    most = max(reserved[: failed + 1])  # the card had room: a limit was met
    return Capacity(most, max(most + 1, reserved[failed] + needed), limited=True)


def emptied(
    recording: Recording, reserved: array[int], end: int, capacity: Capacity | None
) -> Iterator[tuple[int, int]]:
    """The events before which the program emptied the cache, each with the pool: private ones in use are left alone."""
    kinds, sizes, pools = recording.events.kinds, recording.events.sizes, recording.events.pools
    most = None if capacity is None or capacity.below is None else capacity.below - 1
    settings = settings_of(recording)
    at = 0
    for first in compress(range(end), mask(kinds, *_GAVE)):
        if first < at:
            continue
        at = first
        while at < end and kinds[at] in (*_GAVE, Kind.FREE_COMPLETED):
            at += 1
        if at == end and end < len(kinds):  # it gave all back, and ran out of memory
            return
        grows = at < end and kinds[at] in _TOOK
        full = most is not None and grows and reserved[first] + sizes[at] > most
        gone = [place for place in range(first, at) if kinds[place] in _GAVE]
        least = min(sizes[place] for place in gone)
        collected = settings.collect_above > 0 and least > SMALL_SEGMENT
        oversize = most is None and settings.max_split > 0 and least >= settings.max_split
        if not (grows and (full or collected or oversize)):
            yield from (
                (first, pool) for pool in sorted({0 if pools is None else max(0, pools[place]) for place in gone})
            )


def _pools(recording: Recording, positions: array[int]) -> array[int] | None:
    """The pool of each of some events, by number; ``None`` if there is only the main one."""
    if not recording.pools:
        return None
    events = recording.events
    if events.pools is not None:
        return array("q", [events.pools[place] for place in positions])
    private = [segment for segment in recording.segments if segment.pool != MAIN_POOL]
    starts = [segment.address for segment in private]
    numbers = {pool: number for number, pool in enumerate(recording.pools, 1)}
    found = array("q")
    for place in positions:
        at = bisect_right(starts, events.addresses[place]) - 1
        inside = at >= 0 and events.addresses[place] < private[at].end
        found.append(numbers[private[at].pool] if inside else 0)
    return found


def _before(recording: Recording, active: Replay) -> tuple[array[int], array[int]]:
    """Segments and blocks before the first event, as rows of a job."""
    sizes = {} if active.taken is None else active.taken.before
    known = sorted(active.lives.before, key=lambda old: old.address)
    numbers = {pool: number for number, pool in enumerate(recording.pools, 1)}
    segments, blocks = array("q"), array("q")
    at = 0
    for start, end, stream, pool, small, expandable in undone(recording):
        inside: list[tuple[Before, int]] = []
        while at < len(known) and known[at].address < end:
            if known[at].address >= start:
                inside.append((known[at], sizes.get(known[at].address, known[at].requested)))
            at += 1
        if small is None:
            small = all(size <= LARGEST_SMALL for _, size in inside) and end - start == SMALL_SEGMENT
        number = len(segments) // 6
        segments.extend((start, end - start, stream, numbers.get(pool, 0), int(small), int(expandable)))
        place = start
        for old, size in inside:
            size = min(size, end - old.address)
            if old.address >= place and size > 0:
                blocks.extend((old.address, size, min(old.requested, size), number))
                place = old.address + size
    return segments, blocks


_Was = tuple[int, int, int, tuple[int, int], bool | None, bool]


def undone(recording: Recording, moment: int = 0) -> list[_Was]:
    """The segments at a moment: start, end, stream, pool, whether for small requests (if known), whether expandable.

    What the events since then did is undone, from the last one back.
    """
    found = _Ranges()
    for one in recording.segments:
        found.put((one.address, one.end, one.stream, one.pool, one.small, one.expandable))
    events = recording.events
    chosen = mask(events.kinds, *_TOOK, *_GAVE)
    for place in reversed([*compress(range(moment, len(events)), chosen[moment:])]):
        kind, address, size = events.kinds[place], events.addresses[place], events.sizes[place]
        if kind == Kind.SEGMENT_ALLOC:
            found.pop(address)
        elif kind in _GAVE:
            stream = 0 if events.streams is None else events.streams[place]
            pool = MAIN_POOL if events.pools is None else recording.pool(events.pools[place])
            found.put((address, address + size, stream, pool, None, kind == Kind.SEGMENT_UNMAP))
        elif kind == Kind.SEGMENT_MAP:
            found.cut(address, address + size)
    return found.all()


class _Ranges:
    """Segments by address, which do not overlap in a record that is whole."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._found: dict[int, _Was] = {}

    def put(self, one: _Was) -> None:
        if one[0] not in self._found:
            insort(self._starts, one[0])
        self._found[one[0]] = one

    def pop(self, start: int) -> None:
        if self._found.pop(start, None) is not None:
            del self._starts[bisect_left(self._starts, start)]

    def cut(self, start: int, end: int) -> None:
        """Take a range out of the segments."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        inside = [self._found[at] for at in self._starts[first : bisect_left(self._starts, end)]]
        for one in inside:
            if start < one[1]:
                self.pop(one[0])
                for begin, stop in ((one[0], start), (end, one[1])):
                    if begin < stop:
                        self.put((begin, stop, *one[2:]))

    def all(self) -> list[_Was]:
        return [self._found[start] for start in self._starts]
