"""Memory over time from a record: exact at every point, bounded for any number of events."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.curves import MOST_BANDS, MOST_POINTS, MOST_STACKS, Curve
from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.model.windows import Window
from cudamem_testing.snapshots.curves import BEFORE, curve, moments_of
from cudamem_testing.snapshots.record import Events, Kind, LiveBlock, Recording, Stacks
from cudamem_testing.snapshots.replay import Replay, moment_between, replay

CPU = Device("cpu")
Read = tuple[int, Counters]


def stack(number: int) -> Stack:
    """Calls that allocate: numbers of one dozen share a line."""
    line = number % 12
    return Stack((Frame("torch/nn.py", number, "linear", "library"), Frame("a.py", line, "f")) if line else ())


def history(seed: int, length: int, old: int = 3) -> tuple[Recording, list[Read]]:
    """A random record after some ``old`` blocks, and the counters at some of its moments."""
    generator = random.Random(seed)
    live = {1000 * (place + 1): 10 * (place + 1) for place in range(old)}
    owner = dict.fromkeys(live, 1)
    kinds, columns = bytearray(), [array("q") for _ in range(4)]
    allocations, reads, made = 50, [], 0
    for place in range(length):
        if generator.random() < 0.1 or not place:
            reads.append((place, Counters(allocations=allocations, blocks=len(live), allocated=sum(live.values()))))
        if live and generator.random() < 0.45:
            address = generator.choice([*live])
            kind, size, number = Kind.FREE_REQUESTED, live.pop(address), -1
        else:
            made += 1
            address, kind, size, number = 10**6 + 1000 * made, Kind.ALLOC, generator.randint(1, 99), made % 30
            live[address], owner[address] = size, 2
            allocations += 1
        kinds.append(kind)
        for column, value in zip(columns, (address, size, number, owner[address]), strict=True):
            column.append(value)
    reads.append((length, Counters(allocations=allocations, blocks=len(live), allocated=sum(live.values()))))
    blocks = tuple(LiveBlock(address, size, size, 1, owner=owner[address]) for address, size in live.items())
    addresses, sizes, stacks, owners = columns
    events = Events(bytes(kinds), addresses, sizes, stacks, times=array("q", range(0, 7 * length, 7)), owners=owners)
    names = {1: "test_a.py::test_old", 2: "test_a.py::test_it"}
    return Recording(CPU, blocks, events, stacks=Stacks(stack), owners=names, first=7), reads


def window(name: str, first: Read, last: Read, replayed: Replay) -> Window:
    peak = max(replayed.totals[first[0] : last[0] + 1])
    return Window(name, CPU, first[1].allocated, peak, last[1].allocated, opened=first[1], closed=last[1])


def made(seed: int, length: int) -> tuple[Curve, Replay, Window]:
    recording, reads = history(seed, length)
    replayed = replay(recording)
    middle = reads[len(reads) // 2]
    call = window("call", reads[0], middle, replayed)
    found = curve(replayed, [call, window("teardown", middle, reads[-1], replayed)], reads[-1][1])
    assert found is not None
    return found, replayed, call


@given(st.integers(0, 10**6), st.integers(1, 60))
def test_every_point_of_a_small_record(seed: int, length: int) -> None:
    found, replayed, call = made(seed, length)
    assert found.moments == tuple(range(length + 1))
    assert found.totals == [*replayed.totals]
    assert found.totals[found.peak] == call.peak
    assert sum(part.bytes for part in found.live) == call.peak
    assert found.events == length
    assert [one.name for one in found.stretches] == ["call", "teardown"]
    assert (found.stretches[0].first, found.stretches[1].last) == (0, length)


@given(st.integers(0, 10**6))
def test_a_band_is_what_its_line_had(seed: int) -> None:
    found, replayed, _ = made(seed, 40)
    for place, moment in enumerate(found.moments):
        expected: dict[str, int] = {}
        for block in replayed.live_at(moment):
            label = BEFORE if block.preexisting else str(block.stack.where or "(no Python stack)")
            label = "(no Python stack)" if label == "None" else label
            expected[label] = expected.get(label, 0) + block.size
        levels = {band.label: band.sizes(len(found.moments))[place] for band in found.bands}
        others = levels.pop("(1 other line)", 0) + levels.pop("(2 other lines)", 0)
        assert sum(expected.values()) == sum(levels.values()) + others
        assert all(expected.get(label, 0) == size for label, size in levels.items())


def test_parts_name_what_was_left_and_by_whom() -> None:
    found, _, _ = made(3, 30)
    old = [part for part in found.live if part.origin == "before"]
    assert [part.label for part in old] == ["(left by test_a.py::test_old)"]
    assert [part.bytes for part in found.live if part.stack is not None] == sorted(
        (part.bytes for part in found.live if part.stack is not None), reverse=True
    )


@given(st.integers(0, 10**6))
def test_moments_are_those_of_single_questions(seed: int) -> None:
    recording, reads = history(seed, 60)
    now = reads[-1][1]
    wanted = [counters for _, counters in reads]
    assert moments_of(recording, [*wanted, None], now) == [
        *(moment_between(recording, one, now) for one in wanted),
        None,
    ]


def test_a_long_record_is_bounded_and_keeps_its_peak(figure: Callable[[str], None]) -> None:
    recording, reads = history(5, 60_000)
    replayed = replay(recording)
    call = window("call", reads[0], reads[-1], replayed)
    began = time.process_time()
    found = curve(replayed, [call], reads[-1][1])
    took = time.process_time() - began
    assert found is not None
    assert len(found.moments) <= MOST_POINTS
    assert len(found.bands) <= MOST_BANDS + 3
    assert len(found.live) <= MOST_STACKS + 4
    assert max(found.totals) == found.totals[found.peak] == call.peak
    assert found.totals == [replayed.totals[moment] for moment in found.moments]
    assert took < 2
    figure(f"memory over time of 60,000 events: about {took:.1f} s of processor time")


def test_regions_beyond_the_bound_are_counted() -> None:
    recording, reads = history(5, 400)
    replayed = replay(recording)
    regions = [window(f"step {place}", reads[0], one, replayed) for place, one in enumerate((reads * 3)[:45])]
    found = curve(replayed, regions, reads[-1][1])
    assert found is not None
    assert len(found.stretches) == 40
    assert found.notes[-1] == "5 more regions not marked"


def test_without_events_there_is_none() -> None:
    recording, reads = history(1, 1)
    bare = Recording(CPU, recording.blocks, stacks=recording.stacks)
    assert curve(replay(bare), [], reads[-1][1]) is None


@pytest.mark.parametrize("truncated", [False, True])
def test_dropped_events_are_said(truncated: bool) -> None:
    recording, reads = history(1, 20)
    from dataclasses import replace

    found = curve(replay(replace(recording, truncated=truncated)), [], reads[-1][1])
    assert found is not None
    assert bool(found.notes) == truncated
