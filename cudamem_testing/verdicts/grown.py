"""Finds the peak without what does not count, and the lines that took segments or blocks. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from cudamem_testing.model.baselines import TOP
from cudamem_testing.model.blocks import LiveSet
from cudamem_testing.model.facts import Taken
from cudamem_testing.model.stacks import Frame
from cudamem_testing.snapshots.record import Kind
from cudamem_testing.snapshots.replay import Replay

NO_FREES: Mapping[int, int] = MappingProxyType({})


def without(live: LiveSet, orders: Collection[int | None]) -> LiveSet:
    """The blocks that were allocated in the window, without those of some orders of allocation."""
    fresh = live.fresh()
    return replace(fresh, blocks=tuple(block for block in fresh if block.order not in orders))


def segments_taken(replayed: Replay, start: int, most: int = TOP) -> tuple[Taken, ...]:
    """What was taken from the driver since the moment ``start``, by line, largest first."""
    events, stacks = replayed.recording.events, replayed.recording.stacks
    sizes: dict[tuple[Frame | None, bool], list[int]] = {}
    for now in range(start, replayed.end):
        if events.kinds[now] in (Kind.SEGMENT_ALLOC, Kind.SEGMENT_MAP):
            side = events.streams is not None and bool(events.streams[now])
            sizes.setdefault((stacks[events.stacks[now]].where, side), []).append(events.sizes[now])
    found = sorted(sizes.items(), key=lambda pair: -sum(pair[1]))[:most]
    return tuple(Taken(line, len(some), sum(some), side) for (line, side), some in found)


def allocations_by_line(replayed: Replay, start: int, most: int = TOP) -> tuple[Taken, ...]:
    """How many blocks each line has allocated since the moment ``start``, most first."""
    events, stacks = replayed.recording.events, replayed.recording.stacks
    numbers = Counter(
        stacks[events.stacks[now]].where for now in range(start, replayed.end) if events.kinds[now] == Kind.ALLOC
    )
    return tuple(Taken(line, number) for line, number in numbers.most_common(most))


def frees_of_others(replayed: Replay, start: int, end: int, owner: int) -> dict[int, int]:
    """Bytes by event that were freed between the moments ``start`` and ``end``, of older blocks that do not belong to
    ``owner``. Empty if events have no owners.
    """
    owners = replayed.recording.events.owners
    if owners is None:
        return {}
    went = {old.freed: size for old, size in replayed.before if start <= old.freed < end}
    freed = replayed.lives.freed
    went.update({freed[place]: replayed.sizes[place] for place in range(start) if start <= freed[place] < end})
    return {place: size for place, size in went.items() if owners[place] != owner}


def peak_without(
    replayed: Replay, start: int, end: int, places: Collection[int], frees: Mapping[int, int] = NO_FREES
) -> tuple[int, int]:
    """The peak up to the moment ``end`` above the moment ``start`` of the replayed counter, in bytes, and its moment.

    What the events at ``places`` allocated is not counted, neither for nor against, nor are ``frees``: bytes by event.
    Linear in the number of events.
    """
    if not places and not frees:
        span = replayed.totals[start : end + 1]
        total = max(span)
        return total - span[0], start + span.index(total)
    freed, uncounted = replayed.lives.freed, 0
    gone = dict(frees)  # each event frees one block; without one, -1 is never asked for
    best, moment = 0, start
    base = replayed.totals[start]
    for now in range(start, end + 1):
        uncounted -= gone.get(now - 1, 0)
        level = replayed.totals[now] - base - uncounted
        if level > best:
            best, moment = level, now
        if now in places:
            uncounted += replayed.sizes[now]
            gone[freed[now]] = replayed.sizes[now]
    return best, moment
