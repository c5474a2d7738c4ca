"""Finds churn in a recording: which lines allocate and free again at once. Linear in the events. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from itertools import accumulate

from cudamem_testing.model.churn import SOON, Allocating, Churn
from cudamem_testing.snapshots.record import Kind
from cudamem_testing.snapshots.replay import DROPPED, Replay


def churn(replayed: Replay, first: int = 0, last: int | None = None) -> Churn:
    """The allocations between two moments, by line; a block that is freed after ``last`` is not freed at once."""
    recording = replayed.recording
    events, end = recording.events, len(recording.events) if last is None else last
    ranks = [0, *accumulate(kind == Kind.ALLOC for kind in events.kinds)]
    by_stack: dict[int, list[int]] = {}
    freed, sizes, stacks = replayed.lives.freed, replayed.sizes, events.stacks
    place = events.kinds.find(Kind.ALLOC, first, end)
    while place >= 0:
        found = by_stack.setdefault(stacks[place], [0, 0, 0, 0])
        found[0] += 1
        found[1] += sizes[place]
        if 0 <= freed[place] < end and ranks[freed[place]] - ranks[place + 1] <= SOON:
            found[2] += 1
            found[3] = max(found[3], sizes[place])
        place = events.kinds.find(Kind.ALLOC, place + 1, end)
    by_line: dict[tuple[str, str], list[int]] = {}
    for number, (blocks, size, soon, largest) in by_stack.items():
        stack = recording.stacks[number]
        line = stack.line if stack.frames else f"({recording.stackless})"
        both = by_line.setdefault((line, stack.library), [0, 0, 0, 0])
        both[:] = both[0] + blocks, both[1] + size, both[2] + soon, max(both[3], largest)
    lines = [Allocating(*place, *numbers) for place, numbers in by_line.items()]
    lines.sort(key=lambda one: (-one.blocks, -one.bytes))
    return Churn(recording.device, tuple(lines), (DROPPED,) if recording.truncated and not first else ())
