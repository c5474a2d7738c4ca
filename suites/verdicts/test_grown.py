"""The peak without what a library keeps, and the lines that took segments and blocks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Taken
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.snapshots.replay import replay
from cudamem_testing.snapshots.snapshot_files import read_file
from cudamem_testing.verdicts.grown import (
    allocations_by_line,
    frees_of_others,
    peak_without,
    segments_taken,
    without,
)
from suites.snapshots.allocator import MIB, Allocator, run

CPU = Device("cpu")
RECORDINGS = Path(__file__).parents[2] / "fixtures" / "recordings"
LIBRARY = Frame("torch/nn/functional.py", 5, "linear", "library")


def block(size: int, line: int, function: str = "forward", order: int = 0, preexisting: bool = False) -> Block:
    stack = Stack((LIBRARY, Frame("model.py", line, function)))
    return Block(size, size, CPU, stack=stack, order=order, preexisting=preexisting)


def live(*blocks: Block) -> LiveSet:
    return LiveSet(CPU, blocks)


def test_without_some_blocks() -> None:
    blocks = block(1, 1, order=1), block(2, 2, order=2), block(3, 3, order=3, preexisting=True)
    assert without(live(*blocks), {2}).blocks == blocks[:1]


@given(st.integers(0, 10**9), st.booleans(), st.data())
def test_the_peak_without_some_blocks_is_that_of_the_others(seed: int, deferred: bool, data: st.DataObject) -> None:
    allocator = Allocator()
    run(allocator, 50, random.Random(seed), deferred=deferred)
    replayed = replay(read(allocator.snapshot()), "requested")
    start = data.draw(st.integers(0, replayed.end))
    end = data.draw(st.integers(start, replayed.end))
    allocations = [place for place in range(start, end) if replayed.lives.freed[place] >= 0]
    places = frozenset(data.draw(st.lists(st.sampled_from(allocations), unique=True)) if allocations else ())
    orders = {replayed.recording.first + place for place in places}

    def level(moment: int) -> int:
        return sum(one.size for one in replayed.live_at(moment) if one.order not in orders)

    levels = [level(moment) - level(start) for moment in range(start, end + 1)]
    peak, moment = peak_without(replayed, start, end, places)
    assert peak == max(levels)
    assert moment == start + levels.index(peak)


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 9), st.integers(0, 2)), max_size=30), st.data())
def test_what_others_made_before_may_go_or_stay(program: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Against a model in which it stays. ``program``: a size, a place in memory, an owner; a taken place is freed."""
    first = data.draw(st.integers(0, len(program)))  # what is before it has left no event
    blocks: dict[int, tuple[int, int, int, int]] = {}  # by address: size, owner, sequence, and the event that made it
    rows, history = [], [{}]
    for number, (size, address, owner) in enumerate(program):
        gone = blocks.pop(address, None)
        if gone is None:
            blocks[address] = size, owner, number + 1, number
        taken, of, sequence, _ = blocks[address] if gone is None else gone
        rows.append((address, taken, sequence, 0, 0, of, 1, 0 if gone is None else 1))
        history.append(dict(blocks))
    live_rows = [(address, size, sequence, 0, owner, 1) for address, (size, owner, sequence, _) in blocks.items()]
    replayed = replay(read_cpu(live_rows, rows[first:], first=first), "requested")
    start = data.draw(st.integers(0, replayed.end))
    end = data.draw(st.integers(start, replayed.end))
    stays = {one for one in history[first + start].values() if one[1] != 1}

    def level(moment: int) -> int:
        return sum(size for size, *_ in stays | {*history[first + moment].values()})

    levels = [level(moment) - level(start) for moment in range(start, end + 1)]
    frees = frees_of_others(replayed, start, end, 1)
    assert peak_without(replayed, start, end, (), frees) == (max(levels), start + levels.index(max(levels)))
    assert sum(frees.values()) == sum(size for size, *_ in stays - {*history[first + end].values()})


@pytest.mark.parametrize("unrecorded", [0, 3])
def test_frees_of_others_and_the_peak_without_them(unrecorded: int) -> None:
    """An older block is freed inside of the window, another at its end; allocations may have no event."""
    alloc, free = 0, 1
    rows = [
        (address, size, sequence, 0, 0, owner, 1, kind)
        for address, size, sequence, owner, kind in [
            (1, 10, 1, 2, alloc),
            (2, 20, 2, 2, alloc),
            (6, 3, 6, 2, alloc),
            (6, 3, 6, 2, free),
            (3, 5, 3, 1, alloc),  # the window begins
            (4, 40, 4, 1, alloc),
            (1, 10, 1, 2, free),
            (4, 40, 4, 1, free),
            (5, 7, 5, 1, alloc),
            (2, 20, 2, 2, free),  # the window has ended
            (3, 5, 3, 1, free),
        ]
    ]
    replayed = replay(read_cpu([(5, 7, 5, 0, 1, 1)], rows[unrecorded:], first=unrecorded), "requested")
    start, end = 4 - unrecorded, 9 - unrecorded
    frees = frees_of_others(replayed, start, end, 1)
    assert frees == {start + 2: 10}
    assert frees_of_others(replayed, start, end + 1, 1) == {start + 2: 10, start + 5: 20}
    assert frees_of_others(replayed, start, end, 2) == {}
    assert peak_without(replayed, start, end, ()) == (45, start + 2)
    assert peak_without(replayed, start, end, (), frees) == (45, start + 2)
    assert peak_without(replayed, start, end, {start + 1}) == (5, start + 1)
    assert peak_without(replayed, start, end, {start + 1}, frees) == (12, end)


def test_segments_and_allocations_since_a_moment() -> None:
    allocator = Allocator()
    allocator.malloc(4 * MIB)
    start = replay(read(allocator.snapshot())).end
    allocator.malloc(12 * MIB, stream=7)
    allocator.malloc(14 * MIB, stream=9)
    allocator.malloc(2 * MIB)
    replayed = replay(read(allocator.snapshot()))
    assert segments_taken(replayed, start) == (Taken(None, 2, 26 * MIB, side_stream=True),)
    assert segments_taken(replayed, 0)[1:] == (Taken(None, 1, 20 * MIB),)
    assert sum(one.number for one in allocations_by_line(replayed, start)) == 3


def test_segments_and_allocations_by_line() -> None:
    """As an H100 recorded them."""
    replayed = replay(read_file(RECORDINGS / "adam_foreach.pickle.gz"))
    (segments,) = segments_taken(replayed, 0)
    assert (str(segments.line), segments.number, segments.bytes) == ("programs.py:70 in adam_foreach", 2, 4 * MIB)
    assert [(str(one.line), one.number, one.bytes) for one in allocations_by_line(replayed, 0, 2)] == [
        ("programs.py:70 in adam_foreach", 18, None),
        ("programs.py:66 in adam_foreach", 6, None),
    ]
