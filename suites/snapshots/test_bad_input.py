"""Damaged and hostile snapshots: a recording with notes or one clear error, in bounded time and memory."""

import pickle
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.oom.explain import explain
from cudamem_testing.snapshots.diff import compare
from cudamem_testing.snapshots.export import to_snapshot
from cudamem_testing.snapshots.files import load, loads
from cudamem_testing.snapshots.fragmentation import fragmentation
from cudamem_testing.snapshots.read import devices, read
from cudamem_testing.snapshots.record import SnapshotError
from cudamem_testing.snapshots.replay import replay
from cudamem_testing.snapshots.text import live_section
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
    """Read it and make every report; totals and live sets must agree whatever the snapshot says."""
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


@given(st.integers(0, 10**9), st.sampled_from((2, 3, 4, 5)), st.sampled_from(SAMPLES))
def test_damaged_pickles(seed, protocol, snapshot):
    try:
        snapshot = loads(damaged_bytes(pickle.dumps(snapshot, protocol), seed))
        everything(snapshot)
    except SnapshotError as error:
        assert 10 < len(str(error)) < 400  # noqa: PT017


@given(st.integers(0, 10**9), st.sampled_from(SAMPLES))
def test_damaged_values(seed, snapshot):
    try:
        everything(damaged_values(snapshot, seed))
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
        "a key of its own in every event",
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
        "a kind of its own for every event",
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
