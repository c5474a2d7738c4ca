"""Finds the events between which every block of a recording was live.

The state at the end is known, and events are matched to it: an allocation without a free must be live at the
end; a free without an allocation before it freed a block that is older than the record. Contradictions (lost
events, damaged files) are counted in notes. Every block is counted once, with one size, so that totals and live sets
agree at every moment, even for damaged files. One pass over the events. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import operator
from array import array
from dataclasses import dataclass, replace
from itertools import compress
from typing import Literal

from cudamem_testing.snapshots.native_replay import Matched, match, native
from cudamem_testing.snapshots.record import Events, Kind, LiveBlock, Recording

Counter = Literal["allocated", "active", "requested"]
NONE = -1
_FREED = -2


@dataclass(frozen=True, slots=True)
class Before:
    """A block allocated before the first event.

    ``freed`` is the position of the event that freed it, or the number of events if it is still live. ``block`` is
    its entry in the state at the end, if it has one.
    """

    address: int
    requested: int
    freed: int
    block: LiveBlock | None = None


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """``freed[i]`` is where the block that event ``i`` allocated was freed: the number of events if it is still
    live, -1 if event ``i`` allocated no block; ``starts`` are the events that allocated one. ``live`` maps the
    allocating event of a live block to its entry in the state at the end. ``ends`` is the kind of event that ends a
    life.
    """

    freed: array[int]
    starts: array[int]
    before: tuple[Before, ...]
    live: dict[int, LiveBlock]
    counter: Counter
    ends: Kind
    notes: tuple[str, ...] = ()


def lifetimes(recording: Recording, counter: Counter = "allocated") -> Lifetimes:
    """Match allocations, frees and the state at the end, for one of the allocator's counters.

    A block counts as allocated until its free is requested, as active and requested until it is completed.
    """
    events = recording.events
    ends, notes = _ends(recording, counter)
    total = len(events)
    blocks = [block for block in recording.blocks if not (block.awaiting_free and counter == "allocated")]
    addresses = [block.address for block in blocks]
    found = native(total)
    matched = _match(events, ends, addresses) if found is None else match(found, events, ends, addresses)
    freed = matched.freed
    before = [Before(events.addresses[place], events.sizes[place], place) for place in matched.before]
    live: dict[int, LiveBlock] = {}
    for start, block in zip(matched.starts, blocks, strict=True):
        if start >= 0:
            freed[start] = total
            live[start] = block
        else:
            before.append(Before(block.address, block.requested, total, block))
    revived = matched.starts.count(_FREED)
    notes += _counted(matched.unseen, "allocated again without a recorded free: counted as freed there")
    notes += _counted(matched.twice, "freed twice: the second free was ignored")
    notes += _counted(revived, "live at the end although its last event is a free: counted as live before")
    notes += _counted(len(matched.lost), "neither freed nor live at the end: left out")
    starts = array("q", compress(range(total), mask(events.kinds, Kind.ALLOC)))
    if matched.lost:
        lost = {*matched.lost}
        starts = array("q", [start for start in starts if start not in lost])
    return Lifetimes(freed, starts, tuple(before), live, counter, ends, tuple(notes))


def _match(events: Events, ends: Kind, live: list[int]) -> Matched:
    """The loop over the events; in C++ it is ``block_lives.h``."""
    freed = array("q", [NONE]) * len(events)
    state: dict[int, int] = {}  # address -> the event that allocated the block there, or _FREED
    before = array("q")
    unseen = twice = 0
    alloc, get = int(Kind.ALLOC), state.get
    chosen = mask(events.kinds, alloc, ends)
    columns = (range(len(events)), events.kinds, events.addresses)
    for place, kind, address in zip(*(compress(column, chosen) for column in columns), strict=True):
        if kind == alloc:
            start = get(address, _FREED)
            if start >= 0:
                unseen += 1
                freed[start] = place
            state[address] = place
        else:
            start = get(address, NONE)
            if start >= 0:
                freed[start] = place
            elif start == NONE:
                before.append(place)
            else:
                twice += 1
            state[address] = _FREED
    starts = array("q", [state.pop(address, NONE) for address in live])
    lost = array("q", [start for start in state.values() if start >= 0])
    return Matched(freed, before, starts, lost, unseen, twice)


def active_lifetimes(recording: Recording, lives: Lifetimes) -> Lifetimes:
    """Those of active blocks, given those for any counter.

    Where every free is completed by the next event, each life is one event longer than that of an allocated block.
    """
    if lives.ends == Kind.FREE_COMPLETED:
        return replace(lives, counter="active") if lives.counter != "active" else lives
    if not completed_at_once(recording):
        return lifetimes(recording, "active")
    events, total = recording.events, len(recording.events)
    freed = lives.freed[:]
    for start in lives.starts:
        if freed[start] < total:
            freed[start] += 1
    before = tuple(
        old if old.freed == total else replace(old, freed=old.freed + 1, requested=events.sizes[old.freed + 1])
        for old in lives.before
    )
    return replace(lives, freed=freed, before=before, counter="active", ends=Kind.FREE_COMPLETED)


def completed_at_once(recording: Recording) -> bool:
    """Whether every free is completed by the event that follows its request."""
    events = recording.events
    requested, completed = (mask(events.kinds, kind) for kind in (Kind.FREE_REQUESTED, Kind.FREE_COMPLETED))
    if b"\0" + requested != completed + b"\0" or Kind.FREE_COMPLETED not in events.kinds:
        return False
    both = (compress(events.addresses, chosen) for chosen in (requested, completed))
    return all(map(operator.eq, *both)) and not any(block.awaiting_free for block in recording.blocks)


def mask(kinds: bytes, *wanted: int) -> bytes:
    """1 for each event of some kinds."""
    table = bytearray(256)
    for code in wanted:
        table[code] = 1
    return kinds.translate(table)


def _ends(recording: Recording, counter: Counter) -> tuple[Kind, list[str]]:
    """The kind of event that ends a life for this counter, if the recording has it."""
    wanted, other = Kind.FREE_REQUESTED, Kind.FREE_COMPLETED
    if counter != "allocated":
        wanted, other = other, wanted
    kinds = recording.events.kinds
    if wanted in kinds or other not in kinds or (wanted == Kind.FREE_COMPLETED and _all_wait(recording)):
        return wanted, []
    if not recording.device.has_segments:
        return other, []  # no streams: a free is complete when it is requested
    return other, [f"the history holds no {wanted.name.lower()} events: using {other.name.lower()} events"]


def _all_wait(recording: Recording) -> bool:
    """Whether every block with a requested free is still active, so that there is no completed free to record."""
    waiting = {block.address for block in recording.blocks if block.awaiting_free}
    events = zip(recording.events.kinds, recording.events.addresses, strict=True)
    return all(address in waiting for kind, address in events if kind == Kind.FREE_REQUESTED)


def _counted(number: int, text: str) -> list[str]:
    if not number:
        return []
    return [f"{number} {'block was' if number == 1 else 'blocks were'} {text}"]
