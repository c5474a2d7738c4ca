"""What a recorder saw while the profiler recorded: the allocator's own account, which completes the profile.

A profile of memory is incomplete. It shows older memory only where the program touches it; on the CPU it misses when
such memory is freed; threads that the program started are not recorded. A recorder (:mod:`..recorders`) sees all of it,
but no tensors. Together they have everything: blocks that were live at the start, and every move of the allocator in
its true order. :func:`merge` matches the profile's moves with the recorder's, address by address, and inserts those
that only the recorder saw. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median_low
from typing import NamedTuple, TypeAlias

from cudamem_testing.model.stacks import Locator, Stack
from cudamem_testing.model.windows import Window
from cudamem_testing.recorders.base import Recorder
from cudamem_testing.snapshots.capture import recording_of
from cudamem_testing.snapshots.record import Kind, Recording
from cudamem_testing.snapshots.replay import moment_between, replay
from cudamem_testing.trace.records import Storage
from cudamem_testing.windows.tracker import Tracker

NO_EVENTS = "the recorder kept no events: what the profiler missed is known only at the end"


class Move(NamedTuple):
    """Memory given out (``nbytes`` above 0) or taken back (below 0)."""

    time: int
    """Nanoseconds on the profiler's clock."""
    device: str
    pointer: int
    nbytes: int
    storage: Storage | None
    event: int
    """Index of the event in the trace; -1 for what only the recorder saw."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The account of one device. Sizes are bytes; ``None`` is unknown to the recorder."""

    device: str
    live: Mapping[int, int] = field(repr=False)
    """Blocks at the start, by address."""
    left: Mapping[int, int] = field(repr=False)
    """Blocks at the end, by address."""
    start: int | None = None
    peak: int | None = None
    end: int | None = None
    moves: tuple[tuple[int, int, int], ...] | None = field(default=None, repr=False)
    """Microseconds on the recorder's clock, address, bytes given out or (below 0) taken back, in order."""
    stacks: tuple[Stack, ...] = field(default=(), repr=False)
    """The stacks of what was given out, in that order; without frames where none was recorded."""
    notes: tuple[str, ...] = ()

    def stacks_of(self) -> dict[int, list[Stack]]:
        """The stacks of the blocks that were given out at each address, in order."""
        found: dict[int, list[Stack]] = {}
        given = (pointer for _, pointer, nbytes in self.moves or () if nbytes > 0)
        for pointer, stack in zip(given, self.stacks, strict=False):
            found.setdefault(pointer, []).append(stack)
        return found


class Measurement:
    """The results of :func:`measure`, available when its block has ended."""

    def __init__(self) -> None:
        self.results: tuple[Measured, ...] = ()


@contextmanager
def measure(
    tracker: Tracker, name: str = "memory profile", root: str = "", *, compared: bool = True
) -> Iterator[Measurement]:
    """Account for a block on every device that records single blocks.

    ``root`` is the project's folder. Counters of recorders that began too late to know older blocks
    are not ``compared``.

    Make it the innermost block: what is allocated between it and the profiler's ends would be missing on one side.
    """
    measurement = Measurement()
    recorders = [one for one in tracker.recorders if one.tells_blocks and not one.device.pseudo]
    before = {recorder.device: _blocks(recorder) for recorder in recorders}
    span = tracker.open(name)
    try:
        yield measurement
    finally:
        windows = {window.device: window for window in tracker.close(span)}
        measurement.results = tuple(
            _measured(recorder, windows[recorder.device], live, Locator(root), compared)
            for recorder in recorders
            if (live := before[recorder.device]) is not None
        )


def merge(measured: Measured, moves: list[Move]) -> list[Move]:
    """The profile's moves on a device and those that only the recorder saw, in order.

    At one address giving out and taking back alternate in both accounts. Where an address has as many moves in both,
    they are the same ones, which shows how far the clocks differ; elsewhere a move of the profile is matched with the
    recorder's move of the same kind that is nearest in time. A move that only the recorder saw keeps its position
    between its neighbours, and its time if that is between theirs.
    """
    if measured.moves is None:
        return moves
    theirs = measured.moves
    by_address: dict[int, tuple[list[int], list[int]]] = {}
    for place, move in enumerate(moves):
        by_address.setdefault(move.pointer, ([], []))[0].append(place)
    for place, (_, pointer, _) in enumerate(theirs):
        by_address.setdefault(pointer, ([], []))[1].append(place)
    partner: dict[int, int] = {}
    open_: list[tuple[list[int], list[int]]] = []
    for ours, others in by_address.values():
        if [moves[one].nbytes > 0 for one in ours] == [theirs[other][2] > 0 for other in others]:
            partner.update(zip(others, ours, strict=True))
        elif ours and others:
            open_.append((ours, others))
    known = partner or {other: one for ours, others in open_ for one, other in _embedded(ours, others, moves, theirs)}
    apart = median_low([moves[one].time - theirs[other][0] * 1000 for other, one in known.items()] or [0])
    for ours, others in open_:
        partner.update(_nearest(ours, others, moves, theirs, apart))
    latest = [0] * len(theirs)
    time = max((move.time for move in moves), default=0)
    for place in range(len(theirs) - 1, -1, -1):
        found = partner.get(place)
        latest[place] = time = time if found is None else min(time, moves[found].time)
    merged = []
    time = 0
    for place, (when, pointer, nbytes) in enumerate(theirs):
        found = partner.get(place)
        if found is None:
            time = max(time, min(when * 1000 + apart, latest[place]))
            merged.append(Move(time, measured.device, pointer, nbytes, None, -1))
        else:
            time = moves[found].time
            merged.append(moves[found])
    matched = set(partner.values())
    merged += [move for place, move in enumerate(moves) if place not in matched]
    return merged


_Moves: TypeAlias = tuple[tuple[int, int, int], ...]


def _embedded(
    ours: Iterable[int], others: Iterable[int], moves: list[Move], theirs: _Moves
) -> Iterator[tuple[int, int]]:
    """Our moves at one address, each with the first of theirs of the same kind that has no partner yet."""
    left = iter(others)
    for one in ours:
        found = next((other for other in left if (theirs[other][2] > 0) == (moves[one].nbytes > 0)), None)
        if found is not None:
            yield one, found


def _nearest(
    ours: list[int], others: list[int], moves: list[Move], theirs: _Moves, apart: int
) -> Iterator[tuple[int, int]]:
    """Their moves at one address with ours, in order, each the nearest in time that leaves a partner for the rest."""
    latest = dict(_embedded(reversed(ours), reversed(others), moves, theirs))
    first = -1
    for one in ours:
        fitting = [
            other
            for other in others
            if first < other <= latest.get(one, -1) and (theirs[other][2] > 0) == (moves[one].nbytes > 0)
        ]
        if fitting:
            first = min(fitting, key=lambda other: abs(theirs[other][0] * 1000 + apart - moves[one].time))
            yield first, one


def _blocks(recorder: Recorder) -> dict[int, int] | None:
    capture = recorder.capture()
    return None if capture is None else _live(recording_of(capture, Locator("")))


def _live(recording: Recording) -> dict[int, int]:
    return {block.address: block.size for block in recording.blocks if not block.awaiting_free}


def _measured(recorder: Recorder, window: Window, live: dict[int, int], locator: Locator, compared: bool) -> Measured:
    capture = recorder.capture()
    recording = Recording(recorder.device) if capture is None else recording_of(capture, locator)
    counters = (window.start, window.peak, window.end) if compared else (None, None, None)
    account = str(recorder.device), live, _live(recording), *counters
    first = _first_event(recording, window)
    if first is None:
        return Measured(*account, notes=(*window.notes, NO_EVENTS))
    events, stacks = recording.events, recording.stacks
    given = (place for place in range(first, len(events)) if events.kinds[place] == Kind.ALLOC)
    return Measured(
        *account,
        moves=_moves(recording, first),
        stacks=tuple(stacks[events.stacks[place]] for place in given),
        notes=window.notes,
    )


def _first_event(recording: Recording, window: Window) -> int | None:
    """The first of the recorder's events inside the window; ``None`` where they were not kept, or not all of them."""
    opened, closed = window.opened, window.closed
    if opened is None or closed is None or opened.blocks is None or closed.blocks is None:
        return None
    return None if recording.events.times is None else moment_between(recording, opened, closed)


def _moves(recording: Recording, first: int) -> tuple[tuple[int, int, int], ...]:
    """The recorder's events from the first one on."""
    events = recording.events
    times = events.times or ()
    sizes = replay(recording).sizes
    given: dict[int, int] = {}
    found = []
    for place in range(first, len(events)):
        kind, pointer = events.kinds[place], events.addresses[place]
        if kind == Kind.ALLOC:
            given[pointer] = sizes[place]
            found.append((times[place], pointer, sizes[place]))
        elif kind == Kind.FREE_REQUESTED:
            found.append((times[place], pointer, -given.pop(pointer, events.sizes[place])))
    return tuple(found)
