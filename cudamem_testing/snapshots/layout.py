"""Finds the real sizes of freed blocks.

CUDA's history records requested bytes, and the counters count allocated bytes. For nearly all blocks the difference
is the rounding (:mod:`rounding`), but blocks of the pool for large requests may keep a remainder of up to 1 MiB if the
allocator does not split it off. Whether it did follows from the size of the free block that the new one was cut
from. So the layout of the segments is replayed: which ranges are free is known at the start (everything between the
blocks that were live then), and the events' addresses say where each new block begins; no search strategy of the
allocator has to be imitated. Linear in the number of events. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from itertools import compress

from cudamem_testing.snapshots.lifetimes import Lifetimes, active_lifetimes, completed_at_once, mask
from cudamem_testing.snapshots.native_replay import MOST_CORRECTIONS, native, replay_layout
from cudamem_testing.snapshots.record import Kind, Recording, Settings
from cudamem_testing.snapshots.rounding import LARGEST_SMALL, always_exact, round_sizes, splits


@dataclass(frozen=True, slots=True)
class Sizes:
    """Allocated bytes: of the block that event ``i`` allocated (``events[i]``), of older blocks by address.

    ``of_active`` is whether they follow from the layout of all active blocks.
    """

    events: array[int]
    before: dict[int, int]
    of_active: bool = False


def taken_sizes(recording: Recording, lives: Lifetimes, known: Sizes | None = None) -> Sizes:
    """The sizes of all blocks of a recording, given the lifetimes of its allocated or active ones.

    ``known`` are those that were found for another counter.
    """
    if known is not None and known.of_active:  # for every counter alike
        return known
    rounded = _rounded(recording)
    sizes = _nominal(recording, lives, rounded)
    if not recording.device.is_card or _all_exact(sizes, recording.settings):
        return sizes
    active = lives
    if not completed_at_once(recording):  # else a block is active for one event more, in which nothing else happens
        active = active_lifetimes(recording, lives)
        sizes = _nominal(recording, active, rounded)
    _Layout(recording, active, sizes.events, sizes.before).replay()
    return replace(sizes, of_active=True)


def _rounded(recording: Recording) -> array[int]:
    """The sizes of all events by rounding only."""
    sizes = recording.events.sizes
    return round_sizes(sizes, recording.settings) if recording.device.is_card else sizes


def _nominal(recording: Recording, lives: Lifetimes, rounded: array[int]) -> Sizes:
    """Sizes by rounding only, except for live blocks, whose size is known."""
    sizes, requested = rounded[:], array("q", [block.requested for block in lives.before])
    if recording.device.is_card:
        requested = round_sizes(requested, recording.settings)
    before = {block.address: size for block, size in zip(lives.before, requested, strict=True)}
    before.update((block.address, block.block.size) for block in lives.before if block.block is not None)
    for place, block in lives.live.items():
        sizes[place] = block.size
    return Sizes(sizes, before)


def _all_exact(sizes: Sizes, settings: Settings) -> bool:
    return always_exact(max((*sizes.before.values(), max(sizes.events, default=0))), settings)


@dataclass(slots=True)
class _Layout:
    """Free ranges of the segments for large requests. ``sizes`` and ``before`` are corrected in place."""

    recording: Recording
    active: Lifetimes
    sizes: array[int]
    before: dict[int, int]
    free: dict[int, int] = field(default_factory=dict)  # start -> end
    free_by_end: dict[int, int] = field(default_factory=dict)
    borders: set[int] = field(default_factory=set)  # starts of segments: free ranges do not merge across them
    taken: dict[int, int] = field(default_factory=dict)  # address -> size of blocks in use
    guessed: dict[int, int] = field(default_factory=dict)  # end -> address of blocks whose size is a guess
    corrections: int = 0

    def replay(self) -> None:
        """Run through the events and correct the sizes of large blocks."""
        self._start()
        events, active, settings = self.recording.events, self.active, self.recording.settings
        found = native(len(events))
        if found is None:
            self._replay()
        else:
            state = self.free, self.borders, self.taken, self.guessed
            self.before |= replay_layout(found, events, active.ends, active.live, self.sizes, settings, *state)

    def _replay(self) -> None:
        """The loop over the events; in C++ it is ``block_layout.h``."""
        events, sizes, taken = self.recording.events, self.sizes, self.taken
        free, by_end, give, take = self.free, self.free_by_end, self._give, self._take
        alloc, ends, live = int(Kind.ALLOC), int(self.active.ends), self.active.live
        segment_alloc, segment_map = int(Kind.SEGMENT_ALLOC), int(Kind.SEGMENT_MAP)
        segment_free, segment_unmap = int(Kind.SEGMENT_FREE), int(Kind.SEGMENT_UNMAP)
        chosen = self._chosen()
        columns = (range(len(events)), events.kinds, events.addresses)
        for place, kind, address in zip(*(compress(column, chosen) for column in columns), strict=True):
            if kind == alloc:
                size = sizes[place]
                # Half of all allocations fill a free range exactly; the others need a closer look.
                if free.get(address) != address + size:
                    sizes[place] = size = take(address, size, place in live)
                else:
                    del free[address], by_end[address + size]
                taken[address] = size
            elif kind == ends:
                size = taken.pop(address, 0)
                if size:
                    end = address + size
                    if end in free or address in by_end:
                        give(address, end)
                    else:  # no neighbour to merge with
                        free[address], by_end[end] = end, address
            elif kind in (segment_alloc, segment_map):
                if kind == segment_alloc:
                    self.borders.add(address)
                give(address, address + events.sizes[place])
            elif kind in (segment_free, segment_unmap):
                self._remove(address, address + events.sizes[place])
                if kind == segment_free:
                    self.borders.discard(address)

    def _chosen(self) -> bytearray:
        """1 for each event that changes large blocks or segments."""
        events, sizes = self.recording.events, self.sizes
        kinds, addresses = events.kinds, events.addresses
        chosen = bytearray(mask(kinds, Kind.SEGMENT_ALLOC, Kind.SEGMENT_MAP, Kind.SEGMENT_FREE, Kind.SEGMENT_UNMAP))
        places = range(len(kinds))
        large = {*self.taken}
        for place in compress(places, mask(kinds, Kind.ALLOC)):
            if sizes[place] > LARGEST_SMALL:
                chosen[place] = 1
                large.add(addresses[place])
        for place in compress(places, mask(kinds, self.active.ends)):
            if addresses[place] in large:
                chosen[place] = 1
        return chosen

    def _start(self) -> None:
        """Free ranges before the first event: those between the blocks of the segments that existed then."""
        segments = _segments_before(self.recording)
        self.borders = {address for address, _ in segments}
        known = {block.address for block in self.active.before if block.block is not None}
        blocks = sorted(self.before)
        at = 0
        for start, end in segments:
            while at < len(blocks) and blocks[at] < start:
                at += 1
            place = start
            while at < len(blocks) and blocks[at] < end:
                address = blocks[at]
                at += 1
                following = min(blocks[at], end) if at < len(blocks) else end
                size = self.before[address]
                if address not in known and size > LARGEST_SMALL:
                    size = self._guess(address, size, following)
                if size > LARGEST_SMALL:
                    self.taken[address] = size
                if address > place:
                    self._give(place, address)
                place = max(place, address + size)
            if place < end:
                self._give(place, end)

    def _guess(self, address: int, size: int, following: int) -> int:
        """The size of a block that was freed later: a gap of up to 1 MiB after it can only be its own remainder."""
        gap = following - address - size
        if not splits(size + gap, size, self.recording.settings):
            size += max(0, gap)
        self.before[address] = size
        self.guessed[address + size] = address
        return size

    def _take(self, address: int, size: int, exact: bool) -> int:
        """Cut a block from the free range that begins at ``address``; returns its size with an unsplit remainder."""
        end = self.free.pop(address, None)
        if end is None:
            end = self._correct(address)
        if end is None:
            return size
        del self.free_by_end[end]
        room = end - address
        if not exact and room > size and not splits(room, size, self.recording.settings):
            return room
        if room > size:
            self.free[address + size] = end
            self.free_by_end[end] = address + size
        return size

    def _give(self, start: int, end: int) -> None:
        """Make a range free, merged with its free neighbours of the same segment."""
        free, by_end = self.free, self.free_by_end
        if end in free and end not in self.borders:
            end = free.pop(end)
            del by_end[end]
        if start in by_end and start not in self.borders:
            before = by_end.pop(start)
            del free[before]
            start = before
        if start in free or end in by_end:  # only in damaged recordings: the range is already free
            return
        free[start] = end
        by_end[end] = start

    def _remove(self, start: int, end: int) -> None:
        if self.free.get(start) == end:
            del self.free[start], self.free_by_end[end]

    def _correct(self, address: int) -> int | None:
        """Handle a block inside a range assumed free: the block before it is larger than guessed."""
        if not self.guessed or self.corrections >= MOST_CORRECTIONS:
            return None
        self.corrections += 1
        start = max((start for start in self.free if start < address), default=None)
        if start is None or self.free[start] <= address or start not in self.guessed:
            return None
        owner = self.guessed.pop(start)
        self.before[owner] = self.taken[owner] = address - owner
        end = self.free.pop(start)
        self.free_by_end[end] = address
        return end


def _segments_before(recording: Recording) -> list[tuple[int, int]]:
    """Ranges of the segments that existed before the first event, by address."""
    made: set[int] = set()
    before: dict[int, int] = {}
    events = recording.events
    alloc, free = int(Kind.SEGMENT_ALLOC), int(Kind.SEGMENT_FREE)
    if alloc in events.kinds or free in events.kinds:
        for kind, address, size in zip(events.kinds, events.addresses, events.sizes, strict=True):
            if kind == alloc:
                made.add(address)
            elif kind == free and address not in made:
                before[address] = address + size
                made.add(address)
    for segment in recording.segments:
        if segment.address not in made:
            before[segment.address] = segment.end
    return sorted(before.items())
