"""What grew: the live set at the peak against the places that a baseline keeps. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from cudamem_testing.model.baselines import TOP, Place
from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.snapshots.lifetimes import NONE
from cudamem_testing.snapshots.record import Kind
from cudamem_testing.snapshots.replay import Replay

LINES = 3
NO_FREES: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Grown:
    """A place with more live bytes than before; ``line`` is its line of most bytes, the last of equals.

    ``numbers`` are those of all of its lines that hold something, for which of them grew is not recorded.
    ``before`` is ``None`` for a place that is not among the recorded ones, which then had ``hidden`` bytes at most.
    """

    place: str
    line: str
    numbers: tuple[int, ...]
    before: int | None
    after: int
    hidden: int = 0

    @property
    def growth(self) -> int:
        """Bytes more than before, at least."""
        return self.after - (self.hidden if self.before is None else self.before)

    @property
    def cells(self) -> tuple[str, str, str]:
        """The row of a table: growth, before and after, where."""
        before = f"<= {format_size(self.hidden)}" if self.hidden else "new"
        known = before if self.before is None else format_size(self.before)
        return f"+{format_size(self.growth)}", f"{known} -> {format_size(self.after)}", self._where

    @property
    def _where(self) -> str:
        """``model.py:41 in forward``, with the numbers of other lines behind it."""
        others = [number for number in self.numbers if f":{number} " not in self.line]
        more = ", ..." if len(others) > LINES else ""
        said = ", ".join(map(str, others[:LINES]))
        return f"{self.line} (and line {said}{more})" if others else self.line

    def __str__(self) -> str:
        return "  ".join(self.cells)


def without(live: LiveSet, orders: Collection[int | None]) -> LiveSet:
    """The blocks that were allocated in the window, without those of some orders of allocation."""
    fresh = live.fresh()
    return replace(fresh, blocks=tuple(block for block in fresh if block.order not in orders))


def top_of(live: LiveSet, most: int = TOP) -> tuple[Place, ...]:
    """The largest places of a live set; those of equal size by name, so that the same run gives the same entry."""
    places = [Place(group.key, group.size) for group in live.group_by(lambda block: block.stack.place)]
    return tuple(sorted(places, key=lambda place: (-place.bytes, place.name))[:most])


def grown(before: Sequence[Place], live: LiveSet, most: int = TOP) -> tuple[Grown, ...]:
    """The places that hold more than what is recorded, largest growth first."""
    known = {place.name: place.bytes for place in before}
    hidden = before[-1].bytes if len(before) >= TOP else 0
    found = []
    for group in live.group_by(lambda block: block.stack.place):
        line, numbers = _lines(group.blocks)
        one = Grown(group.key, line, numbers, known.get(group.key), group.size, 0 if group.key in known else hidden)
        if one.growth > 0:
            found.append(one)
    return tuple(sorted(found, key=lambda one: -one.growth)[:most])


def lines_of(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows as lines of text: numbers, and last the place, which gives way."""
    columns = [Column("", "right") for _ in rows[0][:-1]] if rows else []
    table = Table((*columns, Column("", elastic=True)), tuple(map(tuple, rows)))
    return table.lines(width, header=False, indent=3)


def segments_taken(replayed: Replay, start: int, most: int = TOP) -> list[tuple[str, ...]]:
    """What was taken from the driver since the moment ``start``: size, segments, line, largest first."""
    events, stacks = replayed.recording.events, replayed.recording.stacks
    sizes: dict[tuple[str, bool], list[int]] = {}
    for now in range(start, replayed.end):
        if events.kinds[now] in (Kind.SEGMENT_ALLOC, Kind.SEGMENT_MAP):
            side = events.streams is not None and bool(events.streams[now])
            sizes.setdefault((stacks[events.stacks[now]].line, side), []).append(events.sizes[now])
    found = sorted(sizes.items(), key=lambda pair: -sum(pair[1]))[:most]
    return [
        (format_size(sum(some)), count(len(some), "segment"), f"{line} (on a side stream)" if side else line)
        for (line, side), some in found
    ]


def allocations_by_line(replayed: Replay, start: int, most: int = TOP) -> list[tuple[str, ...]]:
    """How many blocks each line has allocated since the moment ``start``, most first."""
    events, stacks = replayed.recording.events, replayed.recording.stacks
    numbers = Counter(
        stacks[events.stacks[now]].line for now in range(start, replayed.end) if events.kinds[now] == Kind.ALLOC
    )
    return [(str(number), line) for line, number in numbers.most_common(most)]


def frees_of_others(replayed: Replay, start: int, end: int, owner: int) -> dict[int, int]:
    """Bytes that went from the moment ``start`` to ``end``, by event, of older blocks that ``owner`` did not make.

    Empty where events do not tell owners.
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
    ends: dict[int, int] = {}
    best, moment = 0, start
    base = replayed.totals[start]
    for now in range(start, end + 1):
        uncounted -= ends.pop(now, 0) + frees.get(now - 1, 0)
        level = replayed.totals[now] - base - uncounted
        if level > best:
            best, moment = level, now
        if now in places:
            uncounted += replayed.sizes[now]
            if freed[now] != NONE:
                ends[freed[now] + 1] = ends.get(freed[now] + 1, 0) + replayed.sizes[now]
    return best, moment


def _lines(blocks: Sequence[Block]) -> tuple[str, tuple[int, ...]]:
    """The line of most bytes, the last of equals, and the numbers of all lines."""
    sizes: dict[str, int] = {}
    frames = (block.stack.project_frame for block in blocks)
    numbers = sorted({frame.line for frame in frames if frame is not None})
    for block in blocks:
        line = block.stack.line
        size = sizes.pop(line, 0) + block.size  # its place is that of its last block
        sizes[line] = size
    return max(reversed(sizes), key=lambda line: sizes[line]), tuple(numbers)
