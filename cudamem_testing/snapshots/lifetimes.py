"""Finds the events between which every block of a recording was live.

The state at the end is known, and events are matched to it: an allocation without a free must be live at the
end; a free without an allocation before it freed a block that is older than the record. Contradictions (lost
events, damaged files) are counted in notes. Every block is counted once, with one size, so that totals and live sets
agree at every moment, even for damaged files. One pass over the events. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Literal

from cudamem_testing.snapshots.record import Kind, LiveBlock, Recording

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
    live, -1 if event ``i`` allocated no block. ``live`` maps the allocating event of a live block to
    its entry in the state at the end. ``ends`` is the kind of event that ends a life.
    """

    freed: array[int]
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
    freed = array("q", [NONE]) * total
    state: dict[int, int] = {}  # address -> the event that allocated the block there, or _FREED
    before: list[Before] = []
    unseen = twice = 0
    alloc, end = int(Kind.ALLOC), int(ends)
    for place, (kind, address) in enumerate(zip(events.kinds, events.addresses, strict=True)):
        if kind == alloc:
            start = state.get(address, _FREED)
            if start >= 0:
                unseen += 1
                freed[start] = place
            state[address] = place
        elif kind == end:
            start = state.get(address, NONE)
            if start >= 0:
                freed[start] = place
            elif start == NONE:
                before.append(Before(address, events.sizes[place], place))
            else:
                twice += 1
            state[address] = _FREED
    notes += _counted(unseen, "allocated again without a recorded free: counted as freed there")
    notes += _counted(twice, "freed twice: the second free was ignored")
    live: dict[int, LiveBlock] = {}
    revived = 0
    for block in recording.blocks:
        if block.awaiting_free and counter == "allocated":
            continue
        start = state.pop(block.address, NONE)
        if start >= 0:
            freed[start] = total
            live[start] = block
        else:
            revived += start == _FREED
            before.append(Before(block.address, block.requested, total, block))
    notes += _counted(revived, "live at the end although its last event is a free: counted as live before")
    lost = sum(start >= 0 for start in state.values())
    notes += _counted(lost, "neither freed nor live at the end: left out")
    return Lifetimes(freed, tuple(before), live, counter, ends, tuple(notes))


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
