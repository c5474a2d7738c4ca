"""Why a request did not fit: what was free, in which pieces, and which live blocks stand between the pieces.

The state is that of the moment at which memory ran out. A recording holds it if it ends there (torch's observer of
out-of-memory errors, or a dump in the handler of the exception that has freed nothing yet); if events follow, blocks
that were freed since are restored. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cudamem_testing.model.blocks import Block
from cudamem_testing.model.devices import Device
from cudamem_testing.model.pools import Pool
from cudamem_testing.model.stacks import Frame
from cudamem_testing.snapshots.record import Recording, Settings
from cudamem_testing.snapshots.replay import Replay
from cudamem_testing.snapshots.rounding import LARGEST_SMALL, may_use, round_size
from cudamem_testing.snapshots.whatif.job import Capacity, Prepared, failure, prepare, segment_size, undone


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Live blocks of one line that are in the way, in bytes.

    ``oldest`` and ``newest`` are ages at the failure in microseconds, ``None`` where the record has no clock;
    ``before`` is whether some were live before the first recorded event, so that they are older than the record.
    """

    line: str
    frame: Frame | None
    size: int
    blocks: int
    oldest: int | None
    newest: int | None
    before: bool


@dataclass(frozen=True, slots=True)
class Request:
    """An allocation that failed: its bytes, its line, and where it looked for room."""

    device: Device
    event: int
    requested: int
    where: Frame | None
    stream: int
    pool: Pool


@dataclass(frozen=True, slots=True)
class Why(Request):
    """A request that failed. Sizes in bytes; ``None`` is unknown.

    ``requested`` became a block of ``needed`` bytes, and a new segment for it ``segment`` bytes. ``live`` is what was
    allocated, ``waiting`` what other streams may still use, ``reserved`` what the process had of the card,
    ``device_free`` what the card had left. Of the ``unused`` bytes of the main pool, ``split`` are beside live
    blocks; ``largest_free`` is the largest range that could serve this request, on its stream and in its pool, and
    ``withheld`` are unused bytes there that ``max_split_size_mb`` leaves to larger requests. ``private_unused`` are
    unused bytes of private pools.

    ``obstacles`` are the blocks without which there would have been room, those that cost least to move: ``gained``
    bytes in a row, or in whole segments if ``by_segments``, for ``moved`` bytes of live blocks.
    """

    events: int
    needed: int
    segment: int
    live: int
    waiting: int
    reserved: int
    capacity: Capacity | None
    device_free: int
    unused: int
    split: int
    largest_free: int
    withheld: int
    private_unused: int
    obstacles: tuple[Obstacle, ...]
    moved: int
    gained: int
    by_segments: bool

    @property
    def fragmented(self) -> bool:
        """Whether the bytes were there: unused ones and those of the card together would have been enough."""
        return self.unused + self.room >= self.needed

    @property
    def room(self) -> int:
        """Bytes that the process could still reserve; at least so many, if that is not known to the byte."""
        return self.device_free if self.capacity is None else max(0, self.capacity.least - self.reserved)

    @property
    def fragmentation(self) -> float:
        """The share of unused bytes outside the largest range for this request, from 0 to 1."""
        return 1 - self.largest_free / self.unused if self.unused else 0.0


@dataclass(frozen=True, slots=True)
class _Place:
    """A segment at the moment of the failure, with its live blocks by address."""

    start: int
    end: int
    stream: int
    pool: int
    small: bool
    expandable: bool
    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def used(self) -> int:
        return sum(block.size for block in self.blocks)


def failed_request(recording: Recording) -> Request | None:
    """The last allocation that failed; ``None`` if the recording holds none, or is not of a card."""
    failed = failure(recording)
    if failed is None or not recording.device.is_card:
        return None
    events = recording.events
    return Request(
        recording.device,
        failed,
        events.sizes[failed],
        recording.stacks[events.stacks[failed]].where,
        0 if events.streams is None else events.streams[failed],
        recording.pool(0 if events.pools is None else max(0, events.pools[failed])),
    )


def why(recording: Recording, capacity: int | None = None, prepared: Prepared | None = None) -> Why | None:
    """Why the last allocation that failed did not fit; ``None`` if the recording holds none, or is not of a card.

    ``capacity`` is what the process can reserve, in bytes, if it is known better than the record tells; ``prepared`` is
    the job for it, if it was made before.
    """
    request = failed_request(recording)
    if request is None:
        return None
    events, failed, stream = recording.events, request.event, request.stream
    prepared = prepare(recording, capacity) if prepared is None else prepared
    needed = round_size(request.requested, recording.settings)
    pool = 0 if events.pools is None else max(0, events.pools[failed])
    live, busy = prepared.allocated.totals[failed], prepared.active.totals[failed]
    places = [*_places(recording, prepared.active, failed)]
    small = needed <= LARGEST_SMALL
    mine = [one for one in places if (one.stream, one.pool, one.small) == (stream, pool, small)]
    main = [one for one in places if not one.pool]
    gaps = [size for one in mine for size in _gaps(one)]
    segment = segment_size(needed, expandable=recording.settings.expandable)
    missing = _missing(prepared.capacity, segment, prepared.reserved[failed])
    chosen, gained, by_segments = _cheapest(mine, main, needed, missing, recording.settings)
    return Why(
        device=request.device,
        event=failed,
        events=len(events),
        requested=request.requested,
        where=request.where,
        stream=stream,
        pool=request.pool,
        needed=needed,
        segment=segment,
        live=live,
        waiting=busy - live,
        reserved=prepared.reserved[failed],
        capacity=prepared.capacity,
        device_free=events.addresses[failed],
        unused=sum(one.size - one.used for one in main),
        split=sum(one.size - one.used for one in main if one.blocks),
        largest_free=max((size for size in gaps if may_use(size, needed, recording.settings)), default=0),
        withheld=sum(size for size in gaps if not may_use(size, needed, recording.settings)),
        private_unused=sum(one.size - one.used for one in places if one.pool),
        obstacles=tuple(_obstacles(recording, chosen, failed)),
        moved=sum(block.size for block in chosen),
        gained=gained,
        by_segments=by_segments,
    )


def _missing(capacity: Capacity | None, segment: int, reserved: int) -> int:
    """Bytes that must be returned to the card before it has room for a new segment."""
    return segment if capacity is None else max(0, segment - max(0, capacity.least - reserved))


def _places(recording: Recording, active: Replay, failed: int) -> Iterator[_Place]:
    blocks = sorted(active.live_at(failed), key=lambda block: block.address or 0)
    at = 0
    for start, end, stream, pool, small, expandable in segments_at(recording, failed):
        inside = []
        while at < len(blocks) and (blocks[at].address or 0) < end:
            if (blocks[at].address or 0) >= start:
                inside.append(blocks[at])
            at += 1
        if small is None:
            small = bool(inside) and all(block.size <= LARGEST_SMALL for block in inside)
        yield _Place(start, end, stream, pool, small, expandable, tuple(inside))


def _gaps(place: _Place) -> Iterator[int]:
    at = place.start
    for block in place.blocks:
        yield (block.address or 0) - at
        at = (block.address or 0) + block.size
    yield place.end - at


def _cheapest(
    mine: Sequence[_Place], main: Sequence[_Place], needed: int, missing: int, settings: Settings
) -> tuple[tuple[Block, ...], int, bool]:
    """The live blocks that cost least to move for a range of ``needed`` bytes, or for segments of ``missing`` bytes."""
    row: tuple[int, tuple[Block, ...], int] | None = None
    for place in mine:
        found = _row(place, needed, settings)
        if found is not None and (row is None or found[0] < row[0]):
            row = found
    whole: list[_Place] = []
    gained = 0
    for place in sorted(main, key=lambda one: (one.used / one.size, -one.size)):
        if gained >= missing:
            break
        if not place.expandable:
            whole.append(place)
            gained += place.size
    moved = sum(place.used for place in whole)
    if gained >= missing and (row is None or moved < row[0]):
        return tuple(block for place in whole for block in place.blocks), gained, True
    return ((), 0, False) if row is None else (row[1], row[2], False)


def _row(place: _Place, needed: int, settings: Settings) -> tuple[int, tuple[Block, ...], int] | None:
    """The stretch that is long enough and has least bytes of live blocks: those bytes, the blocks, its length."""
    if place.size < needed:
        return None
    blocks = place.blocks
    starts = [place.start, *((block.address or 0) + block.size for block in blocks)]
    ends = [*(block.address or 0 for block in blocks), place.end]
    best: tuple[int, int, int] | None = None
    last, inside = 0, 0  # the stretch goes from the end of block first-1 to the start of block last
    for first in range(len(starts)):
        if last < first:
            last, inside = first, 0
        while last < len(blocks) and ends[last] - starts[first] < needed:
            inside += blocks[last].size
            last += 1
        if ends[last] - starts[first] < needed:
            break
        if (best is None or inside < best[0]) and may_use(ends[last] - starts[first], needed, settings):
            best = inside, first, last
        if first < len(blocks):
            inside -= blocks[first].size if first < last else 0
    if best is None:
        return None
    moved, first, last = best
    return moved, blocks[first:last], ends[last] - starts[first]


def _obstacles(recording: Recording, blocks: Sequence[Block], failed: int) -> Iterator[Obstacle]:
    times = recording.events.times
    groups: dict[tuple[str, Frame | None], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.stack.line, block.stack.where), []).append(block)
    for (line, frame), some in sorted(groups.items(), key=lambda one: -sum(block.size for block in one[1])):
        ages = [
            times[failed] - times[block.order - recording.first]
            for block in some
            if times and block.order is not None and not block.preexisting
        ]
        yield Obstacle(
            line,
            frame,
            sum(block.size for block in some),
            len(some),
            max(ages, default=None),
            min(ages, default=None),
            any(block.order is None for block in some),
        )


_Was = tuple[int, int, int, int, bool | None, bool]


def segments_at(recording: Recording, moment: int) -> list[_Was]:
    """The segments at a moment: start, end, stream, number of the pool, whether for small requests, expandable."""
    numbers = {pool: number for number, pool in enumerate(recording.pools, 1)}
    return [
        (start, end, stream, numbers.get(pool, 0), small, expandable)
        for start, end, stream, pool, small, expandable in undone(recording, moment)
    ]
