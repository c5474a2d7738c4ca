"""Replays a recording: what was live at any moment, and when most was live.

The allocator's counter is rebuilt event by event; its highest value in a range is the peak, and the blocks whose
lifetime spans that moment are the live set. Sizes that cannot be derived (:mod:`layout`) appear as ``rounding`` if the
measured value is given, so a live set always adds up to what the allocator counted. Everything is linear in the
number of events. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.pools import MAIN_POOL, Pool
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.stacks import Frame
from cudamem_testing.show.notebook import InNotebook
from cudamem_testing.snapshots.layout import Sizes, taken_sizes
from cudamem_testing.snapshots.lifetimes import NONE, Before, Counter, Lifetimes, active_lifetimes, lifetimes
from cudamem_testing.snapshots.native_replay import add_up, native
from cudamem_testing.snapshots.record import NO_STACK, Kind, Recording

DROPPED = "older events were dropped from the ring: blocks allocated in them count as live before"
UNSEEN = "older events were dropped from the ring: a higher moment among them would not be seen"


@dataclass(frozen=True, slots=True)
class Peak(InNotebook):
    """The highest value in a range of moments: ``moment`` is the first with ``total`` bytes."""

    moment: int
    total: int
    live: LiveSet

    def __str__(self) -> str:
        return f"at the peak, event {self.moment}: {self.live}"


@dataclass(frozen=True, slots=True)
class Replay:
    """A recording with the value of one counter at every moment: ``totals[i]`` bytes before event ``i``.

    ``taken`` are the sizes that other counters can use as well.
    """

    recording: Recording
    counter: Counter
    lives: Lifetimes
    sizes: array[int]
    before: tuple[tuple[Before, int], ...]
    totals: array[int]
    taken: Sizes | None = None

    @property
    def end(self) -> int:
        """The last moment: the state in which the recording was taken."""
        return len(self.recording.events)

    def live_at(
        self,
        moment: int | None = None,
        *,
        measured: int | None = None,
        since: int = 0,
        allocations: int | None = None,
    ) -> LiveSet:
        """The blocks that were live at a moment (default: the end), in order of allocation.

        Blocks from before the moment ``since`` are marked pre-existing. If that moment may be among events that
        were dropped, pass ``allocations``, the recorder's count of them until then: a block whose own allocation is
        not in the record is then judged by its number, if blocks have one (on the CPU). ``measured`` is the value of
        the allocator's counter; the difference to the blocks' sizes becomes ``rounding``.

        Raises:
            IndexError: if the recording has no such moment.
        """
        moment = self._checked(self.end if moment is None else moment)
        numbered = allocations if self.recording.events.sequences is not None else None
        blocks = tuple(self._blocks(moment, since, numbered))
        total = sum(block.size for block in blocks)
        rounding = 0 if measured is None else measured - total
        notes = (*self.recording.notes, *self.lives.notes)
        if self.recording.truncated:
            notes += (DROPPED if numbered is None else UNSEEN,)
        if rounding:
            notes += (
                f"the counter held {format_size(abs(rounding))} {'more' if rounding > 0 else 'less'} than the blocks",
            )
        return LiveSet(self.recording.device, blocks, rounding, notes, self.recording.stackless)

    def peak(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        measured: int | None = None,
        since: int | None = None,
        allocations: int | None = None,
    ) -> Peak:
        """The highest moment from ``first`` to ``last`` and what was live then; ``since`` is ``first`` by default.

        ``measured`` and ``allocations`` are those of :meth:`live_at`.

        Raises:
            IndexError: if the recording has no such moments.
        """
        first, last = self._checked(first), self._checked(self.end if last is None else last)
        if last < first:
            raise IndexError(f"the range of moments {first} to {last} is empty")
        span = self.totals[first : last + 1]
        total = max(span)
        moment = first + span.index(total)
        since = first if since is None else since
        live = self.live_at(moment, measured=measured, since=since, allocations=allocations)
        return Peak(moment, total, live)

    @property
    def orders(self) -> Sequence[int]:
        """The number of each event in the order of allocation, even if older ones were dropped."""
        events, first = self.recording.events, self.recording.first
        return range(first, first + self.end) if events.sequences is None else events.sequences

    def _checked(self, moment: int) -> int:
        if not 0 <= moment <= self.end:
            raise IndexError(f"no moment {moment}: the recording has the moments 0 to {self.end}")
        return moment

    def _blocks(self, moment: int, since: int, allocations: int | None) -> Iterator[Block]:
        for old, size in self.before:
            if old.freed >= moment:
                block = self._block_before(old, size)
                later = allocations is not None and block.order is not None and block.order > allocations
                yield replace(block, preexisting=False) if later else block
        freed = self.lives.freed
        pools, lines = _PoolFinder(self.recording), _LineFinder(self.recording)
        starts = self.lives.starts
        for place in [place for place in starts[: bisect_left(starts, moment)] if freed[place] >= moment]:
            yield self._block(place, pools, lines, place < since)

    def _block_before(self, old: Before, size: int) -> Block:
        recording, events, known = self.recording, self.recording.events, old.block
        requested = size if self.counter == "requested" else old.requested
        if known is not None:
            return Block(
                size=size,
                requested=requested,
                device=recording.device,
                address=old.address,
                stack=recording.stacks[known.stack],
                order=known.sequence,
                pool=known.pool,
                stream=known.stream,
                thread=known.thread,
                owner=None if known.owner is None else recording.owners.get(known.owner),
                preexisting=True,
            )
        at = old.freed  # the event that freed it has the rest; on CUDA its stack may be that of the free
        owner = None if events.owners is None else recording.owners.get(events.owners[at])
        return Block(
            size=size,
            requested=requested,
            device=recording.device,
            address=old.address,
            stack=recording.stacks[NONE if recording.device.has_segments else events.stacks[at]],
            order=None if events.sequences is None else events.sequences[at],
            pool=MAIN_POOL if events.pools is None else recording.pool(events.pools[at]),
            stream=0 if events.streams is None else events.streams[at],
            owner=owner,
            preexisting=True,
        )

    def _block(self, place: int, pools: _PoolFinder, lines: _LineFinder, preexisting: bool) -> Block:
        recording, events = self.recording, self.recording.events
        known = self.lives.live.get(place)
        size = self.sizes[place]
        stack = recording.stacks[events.stacks[place]]
        return Block(
            size=size,
            requested=size if self.counter == "requested" else events.sizes[place],
            device=recording.device,
            address=events.addresses[place],
            stack=stack,
            order=recording.first + place if events.sequences is None else events.sequences[place],
            pool=known.pool if known is not None else pools.find(place),
            stream=0 if events.streams is None else events.streams[place],
            thread=None if events.threads is None else events.threads[place],
            owner=None if events.owners is None else recording.owners.get(events.owners[place]),
            preexisting=preexisting,
            after=None if stack.frames else lines.before(place),
        )


class _LineFinder:
    """The project's line that allocated last before an event. Call it in the order of events; each is read once."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._place = 0
        self._line: Frame | None = None

    def before(self, place: int) -> Frame | None:
        """The line before event ``place``; ``None`` if no earlier event of the record has one."""
        events, stacks = self._recording.events, self._recording.stacks
        for earlier in range(place - 1, self._place - 1, -1):
            number = events.stacks[earlier]
            if number == NO_STACK or events.kinds[earlier] != Kind.ALLOC:
                continue
            line = stacks[number].project_frame
            if line is not None:
                self._line = line
                break
        self._place = place
        return self._line


class _PoolFinder:
    """The pool of an address: from the event if it says so, else from the segment at that address at the end."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._private = [segment for segment in recording.segments if segment.pool != MAIN_POOL]
        self._starts = [segment.address for segment in self._private]

    def find(self, place: int) -> Pool:
        """The pool of the block that event ``place`` allocated."""
        events = self._recording.events
        if events.pools is not None:
            return self._recording.pool(events.pools[place])
        address = events.addresses[place]
        at = bisect_right(self._starts, address) - 1
        return self._private[at].pool if at >= 0 and address < self._private[at].end else MAIN_POOL


def replay(recording: Recording, counter: Counter = "allocated", known: Replay | None = None) -> Replay:
    """Rebuild one counter of the allocator: ``allocated``, ``active`` or ``requested`` bytes.

    In a replay of ``requested`` bytes the blocks have their requested sizes. ``known`` is a replay of the same
    recording for another counter, which saves some of the work.
    """
    if counter == "active" and known is not None:
        lives = active_lifetimes(recording, known.lives)
    else:
        lives = lifetimes(recording, counter)
    taken = None
    if counter == "requested":
        sizes = recording.events.sizes
        before = tuple((old, old.requested) for old in lives.before)
    else:
        taken = taken_sizes(recording, lives, None if known is None else known.taken)
        sizes = taken.events
        before = tuple((old, _size_before(old, taken.before)) for old in lives.before)
    return Replay(recording, counter, lives, sizes, before, _totals(lives, sizes, before), taken)


def live_at_end(recording: Recording) -> LiveSet:
    """What was live when the recording was taken.

    The sizes of these blocks are recorded, so no event is replayed.
    """
    lives = lifetimes(recording)
    sizes = recording.events.sizes[:]
    for place, block in lives.live.items():
        sizes[place] = block.size
    before = tuple((old, old.block.size) for old in lives.before if old.block is not None)
    return Replay(recording, "allocated", lives, sizes, before, array("q")).live_at()


def _size_before(old: Before, sizes: dict[int, int]) -> int:
    return old.block.size if old.block is not None else sizes.get(old.address, old.requested)


def _totals(lives: Lifetimes, sizes: array[int], before: tuple[tuple[Before, int], ...]) -> array[int]:
    freed = lives.freed
    changes = array("q", bytes(8 * (len(freed) + 2)))  # the last is of frees that have not happened
    for old, size in before:
        changes[0] += size
        changes[old.freed + 1] -= size
    found = native(len(freed))
    if found is not None:
        add_up(found, lives.starts, freed, sizes, changes)
        return changes[:-1]
    for start in lives.starts:
        size = sizes[start]
        changes[start + 1] += size
        changes[freed[start] + 1] -= size
    del changes[-1]
    return array("q", accumulate(changes))


def moment_at(recording: Recording, time: int) -> int:
    """The moment before the first event at or after ``time`` (microseconds on the recorder's clock).

    Raises:
        LookupError: if the events have no times.
    """
    times = recording.events.times
    if times is None:
        raise LookupError("the events of this recording have no times")
    return next((place for place, when in enumerate(times) if when >= time), len(times))


def moment_of(recording: Recording, name: str, stage: str = "START") -> int:
    """The moment at which an annotation of that name started (or with ``stage="END"``, the last one ended).

    Raises:
        LookupError: if there is none.
    """
    found = [one for one in recording.annotations if one.name == name and one.stage == stage]
    if not found:
        known = sorted({one.name for one in recording.annotations})
        raise LookupError(f"no annotation {name!r} with stage {stage!r}; there are {', '.join(known[:10]) or 'none'}")
    return moment_at(recording, (found[0] if stage == "START" else found[-1]).time)


def moment_before_last(recording: Recording, allocations: int, frees: int) -> int | None:
    """The latest moment with exactly this many allocations and requested frees after it; ``None`` if there is none.

    The counters ``allocation.all.allocated`` and ``.freed`` of ``memory_stats`` read at two times give both numbers,
    so they identify the event at which a window began, also in a truncated ring.
    """
    kinds = recording.events.kinds
    moment = min(_last(kinds, Kind.ALLOC, allocations), _last(kinds, Kind.FREE_REQUESTED, frees))
    if moment < 0:
        return None
    after = kinds[moment:]
    found = after.count(Kind.ALLOC), after.count(Kind.FREE_REQUESTED)
    return moment if found == (allocations, frees) else None


def moment_between(recording: Recording, then: Counters | None, now: Counters | None) -> int | None:
    """The moment at which ``then`` was read, in a recording taken when ``now`` was; ``None`` if unknown."""
    if then is None or now is None or then.allocations is None or now.allocations is None:
        return None
    allocations = now.allocations - then.allocations
    return moment_before_last(recording, allocations, allocations - ((now.blocks or 0) - (then.blocks or 0)))


def _last(kinds: bytes, kind: Kind, number: int) -> int:
    place = len(kinds)
    for _ in range(number):
        place = kinds.rfind(kind, 0, place)
        if place < 0:
            return place
    return place
