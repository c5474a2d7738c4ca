"""Damaged and hostile snapshots: a recording with notes or one clear error, in bounded time and memory."""

import pickle
import random
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.live_tables import live_section
from cudamem_testing.oom.explain import explain
from cudamem_testing.snapshots.diff import compare
from cudamem_testing.snapshots.export import to_snapshot
from cudamem_testing.snapshots.fragmentation import fragmentation
from cudamem_testing.snapshots.read import devices, read
from cudamem_testing.snapshots.record import SnapshotError
from cudamem_testing.snapshots.replay import replay
from cudamem_testing.snapshots.snapshot_files import load, loads
from suites.snapshots.allocator import Allocator, run
from suites.snapshots.mutations import damaged_bytes, damaged_values


def sample():
    allocator = Allocator()
    run(allocator, 80, random.Random(5), streams=(0, 3), pools=((0, 0), (0, 1)), deferred=True)
    snapshot = allocator.snapshot()
    snapshot["external_annotations"] = [{"name": "a", "stage": "START", "device": 0, "time_us": allocator.clock}]
    return snapshot


RECORDINGS = Path(__file__).parents[2] / "fixtures" / "recordings"
SAMPLES = [sample(), *(load(path) for path in sorted(RECORDINGS.glob("*.pickle.gz")))]  # the others are of a card


def everything(snapshot):
    """Read it and make every report; totals and live sets must agree for any snapshot."""
    for device in devices(snapshot)[:2]:
        recording = read(snapshot, device)
        for counter in ("allocated", "active", "requested"):
            replayed = replay(recording, counter)
            peak = replayed.peak()
            assert peak.live.total == peak.total == max(replayed.totals)
            for moment in {0, replayed.end // 2, replayed.end}:
                assert replayed.live_at(moment).total == replayed.totals[moment] >= 0
        live_section(peak.live)
        str(fragmentation(recording))
        str(explain(recording, 1000))
        str(compare(recording, recording))
        str(recording)
        read(to_snapshot(recording), device)


@given(st.integers(0, 10**9), st.sampled_from((2, 3, 4, 5)), st.integers(0, len(SAMPLES) - 1))
def test_damaged_pickles(seed, protocol, sample):
    try:
        snapshot = loads(damaged_bytes(pickle.dumps(SAMPLES[sample], protocol), seed))
        everything(snapshot)
    except SnapshotError as error:
        assert 10 < len(str(error)) < 400  # noqa: PT017


@given(st.integers(0, 10**9), st.integers(0, len(SAMPLES) - 1))
def test_damaged_values(seed, sample):
    try:
        everything(damaged_values(SAMPLES[sample], seed))
    except SnapshotError as error:
        assert 10 < len(str(error)) < 400  # noqa: PT017


MANY = 8_000


def hostile():
    """Files that are small but ask for work that grows faster than they do."""
    blocks = [{"size": 1, "requested_size": 1, "state": "active_allocated", "frames": []}] * MANY
    segment = {"device": 0, "address": 0, "total_size": MANY, "blocks": blocks}
    frame = {"filename": "a.py", "line": 1, "name": "f"}
    frames = [frame] * MANY
    event = {"action": "alloc", "addr": 1, "size": 1, "frames": frames}
    yield "blocks shared by many segments", {"segments": [{**segment, "address": n * 10**6} for n in range(MANY)]}
    yield "segments repeated", {"segments": [segment] * MANY}
    yield "frames shared by many events", {"segments": [], "device_traces": [[event] * MANY]}
    yield (
        "another key in every event",
        {
            "segments": [],
            "device_traces": [[{"action": "alloc", "addr": n, "size": 1, f"key {n}": n} for n in range(MANY)]],
        },
    )
    yield (
        "a pool for every segment",
        {
            "segments": [
                {"device": 0, "address": n * 10, "total_size": 10, "segment_pool_id": (0, n), "blocks": []}
                for n in range(MANY)
            ]
        },
    )
    yield (
        "another kind for every event",
        {
            "segments": [],
            "device_traces": [[{"action": f"kind {n}", "addr": n, "size": 1} for n in range(MANY)]],
        },
    )
    yield "a device for every trace", {"segments": [], "device_traces": [[event]] * MANY}
    large = 5 * 2**20
    yield (
        "guesses that are wrong at every event",
        {
            "segments": [
                {
                    "device": 0,
                    "address": n * 2**28,
                    "total_size": 2**28,
                    "blocks": [{"size": 2**28, "state": "inactive"}],
                }
                for n in range(MANY // 4)
            ],
            "device_traces": [
                [{"action": "alloc", "addr": n * 2**28 + 2**27, "size": large} for n in range(MANY // 4)]
                + [{"action": "free_completed", "addr": n * 2**28, "size": large} for n in range(MANY // 4)]
            ],
        },
    )


@pytest.mark.parametrize(("name", "snapshot"), [pytest.param(*case, id=case[0]) for case in hostile()])
def test_hostile_shapes_take_time_in_proportion_to_their_size(name, snapshot):
    begin = time.process_time()
    everything(snapshot)
    assert time.process_time() - begin < 3.0, name


def test_cycles_inside_a_snapshot():
    frames = []
    frames.append(frames)
    trace = []
    trace += [trace, {"action": "alloc", "addr": 1, "size": 1, "frames": frames, "loop": trace}]
    snapshot = {"segments": [], "device_traces": [trace], "allocator_settings": {}}
    snapshot["allocator_settings"]["self"] = snapshot
    recording = read(loads(pickle.dumps(snapshot, 4)))
    assert len(recording.events) == 1
    everything(snapshot)


def trace(*sizes, **settings):
    events = [{"action": "alloc", "addr": at, "size": size} for at, size in enumerate(sizes, 1)]
    return {"segments": [], "device_traces": [events], "allocator_settings": settings}


@pytest.mark.parametrize(
    "snapshot",
    [
        trace(2**62, 2**62),
        trace(2**63 - 1, roundup_power2_divisions={"1": 2}),
        trace(2**59, 2**59),
        {"segments": [{"device": 0, "address": 0, "total_size": 2**60, "blocks": []}]},
    ],
)
def test_sizes_that_no_device_has_are_one_clear_error(snapshot):
    with pytest.raises(SnapshotError, match=r"^its sizes add up to \d+\.0 TiB, which no device can reach$"):
        read(snapshot)


def test_the_largest_sizes_that_are_read():
    everything(trace(2**59, 2**59 - 1, roundup_power2_divisions={"1": 2}))


def test_pools_whose_hashes_were_chosen_are_none():
    pools = colliding_pairs(3_000)
    assert len({*map(hash, pools)}) == 1  # a dict of them takes the square of the time
    segments = [
        {"device": 0, "address": at * 10, "total_size": 10, "segment_pool_id": pool, "blocks": []}
        for at, pool in enumerate(pools)
    ]
    begin = time.process_time()
    assert read({"segments": segments}).pools == ()
    assert time.process_time() - begin < 2.0
    segments[0]["segment_pool_id"] = (0, 7)
    assert read({"segments": segments[:2]}).pools == ((0, 7),)


def colliding_pairs(number):
    """Pairs of integers with one hash: CPython's hash of a tuple (xxHash, by Y. Collet), solved for the second."""
    most, word = sys.hash_info.modulus, 2**64
    first, second, start = 11400714785074694791, 14029467366897019727, 2870177450012600261

    def rotated(value, by):
        return (value << by | value >> (64 - by)) % word

    found = []
    one = 2**33
    while len(found) < number:
        one += 1
        state = rotated((start + one * second) % word, 31) * first % word
        before_last = rotated(12345 * pow(first, -1, word) % word, 33)
        other = (before_last - state) * pow(second, -1, word) % word
        if other < most:
            found.append((one, other))
    return found
