"""Reading snapshots of several torch versions, and repairing what does not fit."""

import copy

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Locator
from cudamem_testing.snapshots.read import devices, read
from cudamem_testing.snapshots.record import NO_STACK, Kind, LiveBlock, SnapshotError
from suites.snapshots.allocator import FRAMES, MIB, Allocator

PLACES = Locator("/home/me/project")


def small():
    allocator = Allocator()
    allocator.free(allocator.malloc(900, frames=FRAMES[0]))
    allocator.malloc(700, frames=FRAMES[1])
    allocator.malloc(3 * MIB, pool=(0, 2), frames=FRAMES[2])
    return allocator.snapshot()


def test_everything_that_a_snapshot_tells_is_in_the_recording():
    recording = read(small(), locator=PLACES)
    assert recording.device == Device("cuda", 0)
    assert recording.notes == ()
    assert [(segment.size, segment.pool, segment.small, segment.expandable) for segment in recording.segments] == [
        (2 * MIB, (0, 0), True, False),
        (20 * MIB, (0, 2), False, False),
    ]
    assert recording.pools == ((0, 2),)
    first, second = recording.blocks
    assert (first.size, first.requested, first.pool, first.awaiting_free) == (1024, 700, (0, 0), False)
    assert recording.stacks[second.stack].line == "layer3.py:3 in forward"
    assert [Kind(kind).name for kind in recording.events.kinds] == (
        ["SEGMENT_ALLOC", "ALLOC", "FREE_REQUESTED", "FREE_COMPLETED", "ALLOC", "SEGMENT_ALLOC", "ALLOC"]
    )
    assert [*recording.events.sizes] == [2 * MIB, 900, 900, 900, 700, 20 * MIB, 3 * MIB]
    assert recording.events.times is not None
    assert (recording.allocated, recording.reserved) == (1024 + 3 * MIB, 22 * MIB)
    assert str(recording) == "3.0 MiB in 2 blocks on cuda:0, 7 events, 22.0 MiB in 2 segments"


def test_equal_stacks_of_other_objects_share_a_number():
    snapshot = copy.deepcopy(small())
    for entry in snapshot["device_traces"][0]:
        entry["frames"] = copy.deepcopy(entry["frames"])
    stacks = read(snapshot).events.stacks
    assert [*stacks] == [NO_STACK, 2, 2, 2, 0, NO_STACK, 1]  # the blocks' stacks were met first


def test_frames_of_cpp_are_left_out():
    snapshot = small()
    cpp = {"filename": "/build/c10/cuda/CUDACachingAllocator.cpp", "line": 7, "name": "malloc"}
    nowhere = {"filename": "??", "line": 0, "name": "PyEval"}
    snapshot["device_traces"][0][1]["frames"] = [cpp, nowhere, *FRAMES[0], 5, {"filename": 3}]
    recording = read(snapshot, locator=PLACES)
    assert recording.stacks[recording.events.stacks[1]].line == "layer1.py:1 in forward"


def test_block_addresses_that_are_missing_follow_from_the_sizes():
    snapshot = small()
    expected = read(snapshot).blocks
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            del block["address"]
    assert [block.address for block in read(snapshot).blocks] == [block.address for block in expected]
    assert read(snapshot).notes == ()


def test_a_block_without_address_follows_the_previous_one():
    live = {"size": 512, "requested_size": 5, "state": "active_allocated", "frames": []}
    segment = {"device": 0, "address": 0, "total_size": 4096, "blocks": [{**live, "address": 2048}, live]}
    assert [block.address for block in read([segment]).blocks] == [2048, 2560]


def test_a_list_of_segments_is_a_snapshot_without_events():
    recording = read(small()["segments"])
    assert len(recording.blocks) == 2
    assert recording.notes == ("no events: the history was off, so only what is live now is known",)


def test_without_any_stack_the_reason_is_given():
    snapshot = small()
    assert read(snapshot).stackless == "no Python stack: allocated by one of torch's threads, as in backward"
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            block["frames"] = []
    snapshot["device_traces"] = []
    assert read(snapshot).stackless == "no Python stacks: the history was off, or kept without them"
    assert read({"segments": []}).stackless == "no Python stack"


def test_lists_that_json_makes_of_pools_are_read():
    snapshot = small()
    snapshot["segments"][1]["segment_pool_id"] = [0, 2]
    assert read(snapshot).pools == ((0, 2),)


def test_event_pools_pending_frees_and_oom_are_read():
    snapshot = small()
    trace = snapshot["device_traces"][0]
    for entry in trace:
        entry["pool_id"] = (0, 0)
    trace[-1]["pool_id"] = (0, 5)
    trace.append({"action": "oom", "device_free": 77, "size": 4096, "stream": 0, "time_us": 2**60, "frames": []})
    snapshot["segments"][0]["blocks"][0]["state"] = "active_awaiting_free"
    recording = read(snapshot)
    assert recording.pools == ((0, 2), (0, 5))
    assert recording.pool(recording.events.pools[6]) == (0, 5)
    assert recording.pool(recording.events.pools[7]) == (0, 0)
    assert (recording.events.addresses[-1], recording.events.sizes[-1]) == (77, 4096)
    assert recording.blocks[0].awaiting_free
    assert recording.allocated == 3 * MIB


def test_unknown_keys_are_kept_in_position():
    snapshot = small()
    snapshot["new_top"] = {"a": 1}
    snapshot["segments"][0]["registration_counter"] = 3
    snapshot["segments"][1]["blocks"][0]["gc_counter"] = 9
    trace = snapshot["device_traces"][0]
    trace[1] |= {"compile_context": "0/1", "user_metadata": ""}
    trace[2]["compile_context"] = "N/A"
    trace[3] |= {f"new_{n}": n for n in range(6)}
    trace.append({"action": "workspace_snapshot", "addr": 1, "size": 2, "stream": 0, "time_us": 2**60, "frames": []})
    recording = read(snapshot)
    assert recording.extra == {"new_top": {"a": 1}}
    assert recording.segments[0].extra == {"registration_counter": 3}
    assert recording.blocks[1].extra == {"gc_counter": 9}
    assert recording.events.extra == {
        1: {"compile_context": "0/1"},
        3: {f"new_{n}": n for n in range(6)},
        7: {"action": "workspace_snapshot"},
    }
    assert recording.events.kinds[7] == Kind.OTHER
    assert recording.notes == ("events of the kind 'workspace_snapshot' are unknown",)


def test_block_annotations_are_a_separate_kind_of_event():
    snapshot = small()
    trace = snapshot["device_traces"][0]
    trace.insert(2, {**trace[1], "action": "annotate", "user_metadata": "saved"})
    recording = read(snapshot)
    assert recording.notes == ()
    assert recording.events.kinds[2] == Kind.ANNOTATE
    assert recording.events.extra == {2: {"user_metadata": "saved"}}


def test_pinned_host_memory_is_a_device_that_must_be_named():
    snapshot, host = small(), Allocator()
    host.free(host.malloc(8192))
    host.malloc(4096)
    other = host.snapshot()
    for segment in other["segments"]:
        segment["device"] = -1
    snapshot |= {"host_segments": other["segments"], "host_traces": other["device_traces"][0]}
    assert devices(snapshot) == (Device("cuda", 0),)
    assert read(snapshot).extra == {key: snapshot[key] for key in ("host_segments", "host_traces")}
    recording = read(snapshot, Device("host"))
    assert [block.requested for block in recording.blocks] == [4096]
    assert str(recording) == "4.0 KiB in 1 block on host, 5 events, 2.0 MiB in 1 segment"


def test_settings_and_annotations():
    snapshot = small()
    snapshot["allocator_settings"] = {
        "max_split_size": 123,
        "expandable_segments": True,
        "roundup_power2_divisions": {"1": 4, "2": 8},
    }
    snapshot["external_annotations"] = [
        {"name": "a", "stage": "START", "device": 0, "time_us": 5, "color": "red"},
        {"name": "b", "stage": "START", "device": 1, "time_us": 5},
        {"name": "c"},
    ]
    recording = read(snapshot)
    assert recording.settings.max_split_size == 123
    assert recording.settings.expandable is True
    assert recording.settings.roundup == (4, 8)
    assert recording.settings.raw is snapshot["allocator_settings"]
    (annotation,) = recording.annotations
    assert (annotation.name, annotation.stage, annotation.time, annotation.extra) == ("a", "START", 5, {"color": "red"})
    assert recording.notes == ("an annotation without a time was left out",)
    del snapshot["allocator_settings"]
    assert read(snapshot).settings.max_split_size is None


def test_several_devices_must_be_chosen_from():
    first, second = small(), Allocator()
    second.malloc(5000)
    other = second.snapshot(device=1)
    snapshot = {"segments": first["segments"] + other["segments"], "device_traces": first["device_traces"]}
    assert devices(snapshot) == (Device("cuda", 0), Device("cuda", 1))
    with pytest.raises(SnapshotError, match="several devices, name one of cuda:0, cuda:1"):
        read(snapshot)
    assert [block.requested for block in read(snapshot, Device("cuda", 1)).blocks] == [5000]
    assert len(read(snapshot, Device("cuda", 0)).blocks) == 2
    assert devices({"segments": []}) == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "not a snapshot: a int, not the dict of torch.cuda.memory._snapshot"),
        (None, "not a snapshot: a NoneType"),
        ({}, r"not a snapshot: no list of 'segments' among its keys \(none\)"),
        ({"a": 1, 3: 4, "segments": {}}, r"among its keys \(a, segments\)"),
    ],
)
def test_what_is_no_snapshot_is_refused(value, text):
    with pytest.raises(SnapshotError, match=text):
        read(value)


def test_inconsistent_values_are_repaired_and_noted():
    snapshot = small()
    first, second = snapshot["segments"]
    first["blocks"][0] |= {"requested_size": 10**9, "address": 3}
    first["blocks"].append({"size": 4096, "state": "purple"})
    first["blocks"].append("no block")
    second["total_size"] -= 512
    snapshot["segments"] += [7, {"address": 1, "total_size": 1}, {**first, "address": second["address"] + 4}]
    trace = snapshot["device_traces"][0]
    trace[1]["time_us"] = 2**60
    trace[2]["stream"] = -1
    trace += ["no event", {"action": "alloc", "size": -1}, {"action": "alloc", "size": 1, "addr": 2**70}]
    recording = read(snapshot)
    assert recording.notes == (
        "a block's address does not follow from the sizes before it: recomputed",
        "a block without a valid requested size: its size is used instead",
        "a block extends beyond its segment: sizes do not add up (2 times)",
        "a block with an unknown state counts as free",
        "a block that is not a dict with a size was left out",
        "the blocks of a segment do not fill it: sizes do not add up (2 times)",
        "a segment that is not a dict was left out",
        "a segment without its own address, size or blocks was left out (2 times)",
        "an event's stream or time is invalid: dropped",
        "an entry of the trace that is not an event with action and size was left out (2 times)",
        "an event without a valid address was left out",
        "the clock of the events runs backwards",
    )
    assert recording.blocks[0] == LiveBlock(first["address"], 1024, 1024, recording.blocks[0].stack)
    assert len(recording.events) == 7


def test_notes_are_bounded():
    snapshot = small()
    snapshot["device_traces"][0] += [{"action": f"kind {n}", "addr": 0, "size": 0} for n in range(1000)]
    assert len(read(snapshot).notes) == 20
