"""The replay against an allocator that keeps its own counters, and against measurements on a card."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.stacks import Locator
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.replay import (
    DROPPED,
    moment_at,
    moment_before_last,
    moment_of,
    replay,
)
from suites.snapshots.allocator import FRAMES, KIB, MIB, Allocator, run

KINDS = {
    "plain": {},
    "expandable": {"expandable": True},
    "split limit": {"max_split_size": 20 * MIB},
    "roundup": {"roundup": 4},
}

LIVE = "active_allocated"


def live_of(live):
    return {block.address: (block.size, block.requested) for block in live.blocks}


@given(st.integers(0, 10**9), st.sampled_from(sorted(KINDS)), st.booleans(), st.booleans())
def test_every_moment_of_a_full_history_equals_the_counter(seed, kind, deferred, private):
    allocator = Allocator(**KINDS[kind])
    pools = ((0, 0), (0, 3)) if private else ((0, 0),)
    lives = run(allocator, 60, random.Random(seed), streams=(0, 7), pools=pools, deferred=deferred)
    recording = read(allocator.snapshot())
    for place, counter in enumerate(("allocated", "active", "requested")):
        replayed = replay(recording, counter)
        assert [*replayed.totals] == [values[place] for values in allocator.history]
        assert replayed.lives.notes == ()
    replayed = replay(recording)
    for moment, expected in lives.items():
        live = replayed.live_at(moment)
        assert live_of(live) == expected
        assert live.total == replayed.totals[moment]


@given(st.integers(0, 10**9), st.booleans(), st.booleans())
def test_a_late_history_differs_by_unsplit_remainders_only(seed, small, deferred):
    allocator = Allocator()
    generator = random.Random(seed)
    run(allocator, 40, generator, small=small, deferred=deferred)
    allocator.restart()
    for piece in [p for s in allocator.segments for p in s.pieces if p.state == "active_allocated"]:
        if generator.random() < 0.5:
            allocator.free(piece)
    lives = run(allocator, 40, generator, small=small, deferred=deferred)
    replayed = replay(read(allocator.snapshot()))
    errors = [total - values[0] for total, values in zip(replayed.totals, allocator.history, strict=True)]
    assert errors[-1] == 0
    assert small is False or set(errors) == {0}
    old = sum(before.block is None for before, _ in replayed.before)
    assert all(abs(error) <= old * MIB for error in errors)
    peak = max(values[0] for values in allocator.history)
    assert replayed.peak(measured=peak).live.total == peak
    for moment, expected in lives.items():
        assert live_of(replayed.live_at(moment)).keys() == expected.keys()


def test_an_older_blocks_remainder_shows_with_the_next_block():
    allocator = Allocator()
    first = allocator.malloc(12 * MIB + 100)  # a segment of 14 MiB: split
    second = allocator.malloc(MIB + 512)  # takes the rest, less than 1 MiB more than it needs
    assert second.size == 2 * MIB - 512
    allocator.restart()
    allocator.free(second)
    allocator.free(first)
    replayed = replay(read(allocator.snapshot()))
    assert [*replayed.totals] == [14 * MIB, 12 * MIB + 512, 12 * MIB + 512, 0, 0]


def test_a_guess_is_corrected_by_what_follows():
    allocator = Allocator()
    front = allocator.malloc(9 * MIB)  # of 20 MiB
    tail = allocator.malloc(10 * MIB + 1)  # keeps the rest: 11 MiB
    allocator.free(front)
    front = allocator.malloc(8 * MIB + 1)  # of 9 MiB: keeps 1 MiB - 512
    assert (front.size, tail.size) == (9 * MIB, 11 * MIB)
    allocator.free(tail)
    allocator.restart()
    new = allocator.malloc(3 * MIB)  # begins behind the kept rest
    allocator.free(front)
    replayed = replay(read(allocator.snapshot()))
    assert new.address == front.address + 9 * MIB
    assert [*replayed.totals] == [9 * MIB, 12 * MIB, 3 * MIB, 3 * MIB]


def test_a_segment_replacing_two_has_no_border_inside():
    allocator = Allocator()
    base = allocator.next_address
    for block in [allocator.malloc(20 * MIB), allocator.malloc(20 * MIB)]:
        allocator.free(block)
    allocator.empty_cache()
    allocator.next_address = base
    allocator.free(allocator.malloc(40 * MIB))
    half = allocator.malloc(20 * MIB)  # ends where the second segment began
    allocator.free(half)
    allocator.free(allocator.malloc(39 * MIB + MIB // 2))  # keeps the rest of 512 KiB
    replayed = replay(read(allocator.snapshot()))
    assert max(replayed.totals[-4:]) == 40 * MIB
    assert [*replayed.totals] == [allocated for allocated, _, _ in allocator.history]


def test_underivable_sizes_become_rounding_with_a_note():
    allocator = Allocator()
    allocator.malloc(1000)
    replayed = replay(read(allocator.snapshot()))
    live = replayed.live_at(measured=5000)
    assert (live.total, live.rounding) == (5000, 5000 - 1024)
    assert live.notes == ("the counter held 3.9 KiB more than the blocks",)
    assert replayed.live_at(measured=1000).notes == ("the counter held 24 B less than the blocks",)


def test_blocks_know_line_stream_pool_order_and_age():
    allocator = Allocator()
    old = allocator.malloc(10, frames=FRAMES[0])
    allocator.restart()
    allocator.malloc(2000, stream=5, frames=FRAMES[1])
    allocator.malloc(3000, pool=(0, 9), frames=FRAMES[2])
    allocator.free(old)
    recording = read(allocator.snapshot(), locator=Locator("/home/me/project"))
    replayed = replay(recording)
    everything = replayed.live_at(len(allocator.trace) - 2)
    seen = [(b.requested, b.stream, b.pool, b.order, b.preexisting, b.stack.line) for b in everything.blocks]
    assert seen == [
        (10, 0, (0, 0), None, True, "(no Python stack)"),
        (2000, 5, (0, 0), 1, False, "layer2.py:2 in forward"),
        (3000, 0, (0, 9), 3, False, "layer3.py:3 in forward"),
    ]
    assert everything.blocks[1].stack.library == "torch/nn/functional.py linear"
    assert [group.key for group in everything.group_by(lambda block: block.pool)] == [(0, 9), (0, 0)]
    since = replayed.live_at(since=3)
    assert [block.preexisting for block in since.blocks] == [True, False]


def test_the_peak_of_a_range_is_the_first_highest_moment_of_it():
    allocator = Allocator()
    a = allocator.malloc(100 * KIB)
    b = allocator.malloc(200 * KIB)
    allocator.free(a)
    allocator.free(b)
    allocator.malloc(50 * KIB)
    replayed = replay(read(allocator.snapshot()))
    assert (replayed.peak().moment, replayed.peak().total) == (3, 300 * KIB)
    late = replayed.peak(first=5)
    assert (late.moment, late.total) == (5, 200 * KIB)
    assert [block.preexisting for block in late.live.blocks] == [True]
    with pytest.raises(IndexError, match="no moment 9: the recording has the moments 0 to 8"):
        replayed.peak(last=9)
    with pytest.raises(IndexError, match="the range of moments 3 to 2 is empty"):
        replayed.peak(3, 2)


def test_moments_are_found_by_time_annotation_and_counts():
    allocator = Allocator()
    a = allocator.malloc(1)
    snapshot = allocator.snapshot()
    snapshot["external_annotations"] = [
        {"name": "Backward", "stage": "START", "time_us": allocator.clock + 1, "device": 0},
        {"name": "Backward", "stage": "END", "time_us": allocator.clock + 100, "device": 0},
    ]
    allocator.malloc(2)
    allocator.free(a)
    allocator.malloc(3)
    snapshot["device_traces"] = [allocator.trace]
    recording = read(snapshot)
    assert moment_of(recording, "Backward") == 2
    assert moment_of(recording, "Backward", "END") == 6 == len(allocator.trace)
    assert moment_at(recording, 0) == 0
    with pytest.raises(LookupError, match=r"no annotation 'Forward' with stage 'START'; there are Backward"):
        moment_of(recording, "Forward")
    assert moment_before_last(recording, allocations=2, frees=1) == 2
    assert moment_before_last(recording, allocations=1, frees=0) == 5
    assert moment_before_last(recording, allocations=0, frees=0) == 6
    assert moment_before_last(recording, allocations=1, frees=2) is None
    assert moment_before_last(recording, allocations=9, frees=0) is None


def test_a_truncated_ring_says_so():
    allocator = Allocator()
    for size in range(1, 6):
        allocator.malloc(size)
    snapshot = allocator.snapshot()
    snapshot["device_traces"] = [allocator.trace[-3:]]
    live = replay(read(snapshot, max_entries=3)).live_at()
    assert live.notes == (DROPPED,)
    assert [block.preexisting for block in live.blocks] == [True, True, False, False, False]
    assert replay(read(snapshot, max_entries=4)).live_at().notes == ()
    assert read(snapshot).truncated is None


def test_contradictions_are_notes_and_totals_stay_sums():
    allocator = Allocator()
    a = allocator.malloc(600)
    allocator.free(a)
    snapshot = allocator.snapshot()
    alloc, requested, completed = allocator.trace[1:]
    elsewhere = {**alloc, "addr": 512}
    snapshot["device_traces"] = [[alloc, alloc, requested, completed, requested, completed, elsewhere]]
    replayed = replay(read(snapshot))
    assert replayed.lives.notes == (
        "1 block was allocated again without a recorded free: counted as freed there",
        "1 block was freed twice: the second free was ignored",
        "1 block was neither freed nor live at the end: left out",
    )
    assert [*replayed.totals] == [0, 1024, 1024, 0, 0, 0, 0, 0]
    for moment in range(8):
        assert replayed.live_at(moment).total == replayed.totals[moment]


def test_a_history_without_requested_frees_uses_completed_ones():
    allocator = Allocator()
    allocator.free(allocator.malloc(600))
    snapshot = allocator.snapshot()
    snapshot["device_traces"] = [[e for e in allocator.trace if e["action"] != "free_requested"]]
    replayed = replay(read(snapshot))
    assert [*replayed.totals] == [0, 0, 1024, 0]
    assert replayed.lives.notes == ("the history holds no free_requested events: using free_completed events",)


def test_a_history_whose_only_free_is_pending_is_complete():
    allocator = Allocator()
    allocator.free(allocator.malloc(900), deferred=True)
    replayed = replay(read(allocator.snapshot()), "active")
    assert (replayed.lives.notes, [*replayed.totals]) == ((), [0, 0, 1024, 1024])
    assert replay(read(allocator.snapshot())).totals[-1] == 0


def test_a_history_without_completed_frees_uses_requested_ones():
    allocator = Allocator()
    allocator.free(allocator.malloc(900), deferred=True)
    allocator.free(allocator.malloc(3000))
    snapshot = allocator.snapshot()
    trace = snapshot["device_traces"][0]
    trace[:] = [entry for entry in trace if entry["action"] != "free_completed"]
    replayed = replay(read(snapshot), "active")
    assert replayed.lives.notes[0] == ("the history holds no free_completed events: using free_requested events")


def test_a_block_without_a_stack_is_placed_by_the_line_before():
    """Memory that autograd allocates in its own thread; frees and library lines do not identify it."""
    first, second = ([{"filename": "train.py", "line": line, "name": "step"}] for line in (30, 31))
    torchs = [{"filename": "lib/python3.12/site-packages/torch/optim/adam.py", "line": 9, "name": "step"}]
    told = [[], first, [], torchs, [], second, []]
    trace = [
        {"action": "alloc", "addr": 512 * place, "size": 512, "stream": 0, "frames": frames}
        for place, frames in enumerate(told)
    ]
    trace.insert(5, {"action": "free_requested", "addr": 512, "size": 512, "stream": 0, "frames": second})
    blocks = [
        {"address": 512 * place, "size": 512, "requested_size": 512, "state": "inactive" if place == 1 else LIVE}
        for place in range(len(told))
    ]
    segment = {"device": 0, "address": 0, "total_size": 512 * len(told), "stream": 0, "segment_type": "small"}
    replayed = replay(read({"segments": [{**segment, "blocks": blocks}], "device_traces": [trace]}))
    after = [str(block.after) for block in replayed.live_at()]
    assert after == ["None", "train.py:30 in step", "None", "train.py:30 in step", "None", "train.py:31 in step"]
