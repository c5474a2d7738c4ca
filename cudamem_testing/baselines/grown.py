"""What grew: the live set at the peak against the places that a baseline keeps. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cudamem_testing.model.baselines import TOP, Place
from cudamem_testing.model.blocks import Block, LiveSet, count
from cudamem_testing.model.sizes import format_size
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.snapshots.lifetimes import NONE
from cudamem_testing.snapshots.replay import Replay

_COLUMNS = (Column("growth", "right"), Column("before", "right"), Column("after"), Column("where", elastic=True))


@dataclass(frozen=True, slots=True)
class Grown:
    """A place with more live bytes than before; ``line`` is its line of most bytes, the last of equals.

    ``before`` is ``None`` for a place that is not among the recorded ones, which then had ``hidden`` bytes at most.
    """

    place: str
    line: str
    lines: int
    before: int | None
    after: int
    hidden: int = 0

    @property
    def growth(self) -> int:
        """Bytes more than before, at least."""
        return self.after - (self.hidden if self.before is None else self.before)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The row of a table: growth, before, after, where."""
        before = f"<= {format_size(self.hidden)}" if self.hidden else "new"
        known = before if self.before is None else format_size(self.before)
        others = f" and {count(self.lines - 1, 'line')} more" if self.lines > 1 else ""
        return f"+{format_size(self.growth)}", known, f"-> {format_size(self.after)}", f"{self.line}{others}"

    def __str__(self) -> str:
        return "  ".join(self.cells)


def without(live: LiveSet, orders: Collection[int | None]) -> LiveSet:
    """The blocks that were allocated in the window, without those of some orders of allocation."""
    fresh = live.fresh()
    return LiveSet(live.device, tuple(block for block in fresh if block.order not in orders), 0, live.notes)


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
        line, lines = _line(group.blocks)
        one = Grown(group.key, line, lines, known.get(group.key), group.size, 0 if group.key in known else hidden)
        if one.growth > 0:
            found.append(one)
    return tuple(sorted(found, key=lambda one: -one.growth)[:most])


def grown_lines(some: Sequence[Grown], width: int) -> list[str]:
    """The places as lines of text."""
    return Table(_COLUMNS, tuple(one.cells for one in some)).lines(width, header=False, indent=3)


def peak_without(replayed: Replay, start: int, places: Collection[int]) -> tuple[int, int]:
    """The peak above the moment ``start`` of the replayed counter, in bytes, and its moment.

    What the events at ``places`` allocated is not counted, neither for nor against. Linear in the number of events.
    """
    if not places:
        span = replayed.totals[start:]
        total = max(span)
        return total - span[0], start + span.index(total)
    freed, uncounted = replayed.lives.freed, 0
    ends: dict[int, int] = {}
    best, moment = 0, start
    base = replayed.totals[start]
    for now in range(start, replayed.end + 1):
        uncounted -= ends.pop(now, 0)
        level = replayed.totals[now] - base - uncounted
        if level > best:
            best, moment = level, now
        if now in places:
            uncounted += replayed.sizes[now]
            if freed[now] != NONE:
                ends[freed[now] + 1] = ends.get(freed[now] + 1, 0) + replayed.sizes[now]
    return best, moment


def _line(blocks: Sequence[Block]) -> tuple[str, int]:
    """The line of most bytes, the last of equals, and how many lines there are."""
    sizes: dict[str, int] = {}
    for block in blocks:
        line = block.stack.line
        size = sizes.pop(line, 0) + block.size  # its place is that of its last block
        sizes[line] = size
    return max(reversed(sizes), key=lambda line: sizes[line]), len(sizes)
