"""The memory of a test over time, from the events that its recorder has kept.

The bytes of every block are added to the line that allocated it and to each point of the curve at which it was live:
one pass over the events. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeVar

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.curves import (
    MOST_BANDS,
    MOST_POINTS,
    MOST_STACKS,
    Band,
    Curve,
    Origin,
    Part,
    Stretch,
    chosen,
    steps_of,
)
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Stack
from cudamem_testing.model.windows import Window
from cudamem_testing.show.printable import one_line
from cudamem_testing.snapshots.record import Kind, Recording
from cudamem_testing.snapshots.replay import DROPPED, Replay

MOST_STRETCHES = 40
BEFORE = "(live before the test)"
ROUNDING = "(counted by the allocator beyond its blocks' sizes)"
_K = TypeVar("_K")
_Owner = tuple[str, Origin]


def curve(
    replayed: Replay, windows: Sequence[Window], now: Counters, call: str = "call", before: str = BEFORE
) -> Curve | None:
    """The curve of one device; ``None`` where no event was recorded.

    Args:
        replayed: what was recorded until now.
        windows: of the test on this device, in the order in which they ended; they become stretches.
        now: the counters when the record was taken.
        call: the name of the window whose peak counts; without such a window it is the peak of the whole record.
        before: what is said of blocks from before the first window, or where there is none, before the first event.
    """
    recording = replayed.recording
    if not len(recording.events):
        return None
    ends = moments_of(recording, [end for one in windows for end in (one.opened, one.closed)], now)
    known = [*_spans(windows, ends, since_start=not recording.truncated)]
    start = min((first for _, first, _ in known), default=0)
    stop = max((last for _, _, last in known), default=replayed.end)
    inside = next(((one, first, last) for one, first, last in known if one.name == call), None)
    first, last = (start, stop) if inside is None else inside[1:]
    span = replayed.totals[first : last + 1]
    peak = first + span.index(max(span))
    shown = known[:MOST_STRETCHES]
    fixed = {peak - start, *(end - start for _, *both in shown for end in both)}
    totals = replayed.totals
    places = chosen(lambda place: totals[start + place], stop - start + 1, MOST_POINTS, fixed)
    moments = [start + place for place in places]
    where = {moment: place for place, moment in enumerate(moments)}
    measured = None
    if inside is not None and inside[0].opened is not None and inside[0].opened.allocated == inside[0].start:
        measured = inside[0].peak
    earlier = None if measured is None or not recording.truncated or totals[peak] >= measured else measured
    measured = None if earlier is not None else measured
    return Curve(
        recording.device,
        "line",
        tuple(moment - start for moment in moments),
        _times(recording, moments),
        tuple(_bands(replayed, moments, before)),
        tuple(Stretch(one_line(one.name), where[begin], where[end]) for one, begin, end in shown),
        where[peak],
        tuple(_live(replayed, peak, start, measured, before)),
        stop - start,
        tuple(_notes(replayed, len(known) - len(shown), earlier)),
    )


def _spans(
    windows: Sequence[Window], ends: Sequence[int | None], *, since_start: bool
) -> Iterable[tuple[Window, int, int]]:
    """Windows with the moments at which they began and ended: the first one of all for a beginning that was dropped."""
    for place, one in enumerate(windows):
        first, last = ends[2 * place], ends[2 * place + 1]
        if first is None and last and not since_start:
            first = 0
        if first is not None and last is not None:
            yield one, first, last


def moments_of(recording: Recording, wanted: Sequence[Counters | None], now: Counters) -> list[int | None]:
    """The moments at which counters were read, in a recording taken when ``now`` was; ``None`` where not known.

    Each is the latest with as many allocations and requested frees after it as the counters say.
    """
    pairs: dict[tuple[int, int], int | None] = {}
    keys: list[tuple[int, int] | None] = []
    for one in wanted:
        key = None
        if one is not None and one.allocations is not None and now.allocations is not None:
            allocations = now.allocations - one.allocations
            key = allocations, allocations - ((now.blocks or 0) - (one.blocks or 0))
            pairs[key] = None
        keys.append(key)
    kinds = recording.events.kinds
    after = {int(Kind.ALLOC): 0, int(Kind.FREE_REQUESTED): 0}
    allocated, freed = after
    moment, missing = len(kinds), len(pairs)
    while True:
        pair = after[allocated], after[freed]
        if pair in pairs and pairs[pair] is None:
            pairs[pair] = moment
            missing -= 1
        if not missing or not moment:
            return [None if key is None else pairs[key] for key in keys]
        moment -= 1
        if kinds[moment] in after:
            after[kinds[moment]] += 1


def _times(recording: Recording, moments: Sequence[int]) -> tuple[int, ...] | None:
    """Microseconds since the first point; the time of a moment is that of the event before it."""
    times = recording.events.times
    if times is None or not len(times):
        return None
    found = [times[max(moment - 1, 0)] for moment in moments]
    return tuple(accumulate((max(time - found[0], 0) for time in found), max))


def _bands(replayed: Replay, moments: Sequence[int], called: str) -> Iterable[Band]:
    """The largest lines by their highest point, all others together, and earlier memory."""
    owners = _Owners(replayed)
    points = len(moments)
    older: _Owner = (called, "before")
    changes: dict[_Owner, list[int]] = {}

    def add(owner: _Owner, size: int, first: int, last: int) -> None:
        """A block that is live at the moments ``first`` to ``last``."""
        column = changes.get(owner)
        if column is None:
            column = changes[owner] = [0] * (points + 1)
        column[bisect_left(moments, first)] += size
        column[bisect_left(moments, last + 1)] -= size

    for old, size in replayed.before:
        add(older, size, 0, old.freed)
    start = moments[0]
    stacks = replayed.recording.events.stacks
    for place, (freed, size) in enumerate(zip(replayed.lives.freed, replayed.sizes, strict=True)):
        if freed >= 0 and size:
            owner = owners.of(stacks[place]) if place >= start else older
            add(owner, size, place + 1, freed)
    columns = {owner: [*accumulate(column[:points])] for owner, column in changes.items()}
    lines = sorted(
        (owner for owner in columns if owner[1] in ("project", "library")),
        key=lambda owner: (-max(columns[owner]), owner),
    )
    rest = [sum(sizes) for sizes in zip(*(columns[owner] for owner in lines[MOST_BANDS:]), strict=True)]
    for owner in (*(one for one in columns if one not in lines), *lines[:MOST_BANDS]):
        if any(columns[owner]):
            yield Band(*owner, steps_of(columns[owner]))
    if any(rest):
        yield Band(f"({count(len(lines) - MOST_BANDS, 'other line')})", "rest", steps_of(rest))


class _Owners:
    """Who the bytes of an event belong to, by the number of its stack."""

    def __init__(self, replayed: Replay) -> None:
        self._recording = replayed.recording
        self._known: dict[int, _Owner] = {}

    def of(self, number: int) -> _Owner:
        """Of a block with a stack."""
        if number not in self._known:
            frame = self._recording.stacks[number].where
            origin: Origin = "library"
            if frame is None:
                origin = "stackless"
            elif frame.origin == "project":
                origin = "project"
            label = f"({one_line(self._recording.stackless)})" if frame is None else str(frame)
            self._known[number] = label, origin
        return self._known[number]


def _live(replayed: Replay, moment: int, start: int, measured: int | None, called: str) -> Iterable[Part]:
    """What was live at a moment, by stack, largest first; then what no stack explains."""
    sums: dict[int, list[int]] = {}
    before: dict[str | None, list[int]] = {}
    recording = replayed.recording
    events = recording.events

    def add(groups: dict[_K, list[int]], key: _K, size: int) -> None:
        group = groups.setdefault(key, [0, 0])
        group[0] += size
        group[1] += 1

    def owner(number: int | None) -> str | None:
        return None if number is None else recording.owners.get(number)

    for old, size in replayed.before:
        if old.freed >= moment:
            number = old.block.owner if old.block is not None else None
            if old.block is None and events.owners is not None:
                number = events.owners[old.freed]
            add(before, owner(number), size)
    for place, freed in enumerate(replayed.lives.freed[:moment]):
        if freed >= moment:
            if place < start:
                add(before, owner(None if events.owners is None else events.owners[place]), replayed.sizes[place])
            else:
                add(sums, events.stacks[place], replayed.sizes[place])
    by_stack: dict[Stack, list[int]] = {}  # a recorder distinguishes positions in a line
    for number, (size, blocks) in sums.items():
        both = by_stack.setdefault(recording.stacks[number], [0, 0])
        both[0] += size
        both[1] += blocks
    stackless = by_stack.pop(Stack(), None)
    ordered = sorted(by_stack.items(), key=lambda item: -item[1][0])
    for stack, (size, blocks) in ordered[:MOST_STACKS]:
        library = stack.project_frame is None
        yield Part(size, blocks, stack, "", "library" if library else "project")
    yield from _summed(f"({count(len(ordered) - MOST_STACKS, 'more stack')})", "rest", ordered[MOST_STACKS:])
    if stackless is not None:
        yield Part(stackless[0], stackless[1], None, f"({one_line(recording.stackless)})", "stackless")
    owners = sorted(before.items(), key=lambda item: -item[1][0])
    for name, (size, blocks) in owners[:MOST_BANDS]:
        yield Part(size, blocks, None, called if name is None else f"(left by {one_line(name)})", "before")
    yield from _summed("(left by others)", "before", owners[MOST_BANDS:])
    rounding = 0 if measured is None else measured - replayed.totals[moment]
    if rounding > 0:
        yield Part(rounding, 0, None, ROUNDING, "rounding")


def _summed(label: str, origin: Origin, groups: Sequence[tuple[object, list[int]]]) -> Iterable[Part]:
    if groups:
        yield Part(sum(both[0] for _, both in groups), sum(both[1] for _, both in groups), None, label, origin)


def _notes(replayed: Replay, left_out: int, earlier: int | None) -> Iterable[str]:
    yield from (one_line(note) for note in (*replayed.recording.notes, *replayed.lives.notes))
    if replayed.recording.truncated:
        yield DROPPED
    if earlier is not None:
        yield f"the peak of {format_size(earlier)} came before the events that were kept"
    if left_out:
        yield f"{count(left_out, 'more region')} not marked"
