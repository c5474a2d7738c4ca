"""Exports, with torch's own reader as the oracle."""

import base64
import json
import os
import pickle
import pickletools
import random
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.cuda import _memory_viz

from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Locator
from cudamem_testing.snapshots import long_pickle
from cudamem_testing.snapshots.export import to_snapshot, write
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.snapshots.record import SnapshotError
from cudamem_testing.snapshots.replay import replay
from cudamem_testing.snapshots.snapshot_files import read_file
from suites.snapshots.allocator import Allocator, run
from suites.snapshots.test_read_cpu import recording as cpu_recording


@given(st.integers(0, 10**9), st.booleans())
def test_an_exported_recording_reads_back_as_it_was(seed, expandable):
    allocator = Allocator(expandable=expandable)
    run(allocator, 40, random.Random(seed), streams=(0, 9), pools=((0, 0), (0, 3)), deferred=True)
    snapshot = allocator.snapshot()
    snapshot["segments"].sort(key=lambda segment: segment["address"])
    first = read(snapshot)
    exported = to_snapshot(first)
    again = read(exported)
    assert (again.blocks, again.segments, again.events.kinds) == (first.blocks, first.segments, first.events.kinds)
    assert [*replay(again).totals] == [*replay(first).totals]
    for name in ("allocated_size", "active_size", "requested_size", "blocks", "segment_pool_id"):
        ours = [segment[name] for segment in exported["segments"]]
        theirs = [segment[name] for segment in snapshot["segments"]]
        if name == "blocks":
            ours, theirs = ([[{**b, "frames": 0} for b in blocks] for blocks in both] for both in (ours, theirs))
        elif name == "requested_size":
            continue  # torch counts waiting blocks here too
        assert ours == theirs, name


def test_torch_reads_an_exported_recording(tmp_path, capsys):
    allocator = Allocator()
    run(allocator, 60, random.Random(3), deferred=True)
    recording = read(allocator.snapshot(), locator=Locator("/home/me/project"))
    write(tmp_path / "a.pickle", recording)
    loaded = pickle.loads((tmp_path / "a.pickle").read_bytes())
    assert "Active Memory Timeline" in _memory_viz.trace_plot(loaded)
    page = _memory_viz.segment_plot(loaded)
    embedded = json.loads(re.search(r"const local_files = (.*)", page)[1])[0]["base64"]
    assert pickle.loads(base64.b64decode(embedded)) == loaded
    stacks = _memory_viz.memory(loaded, format_flamegraph=lambda text: text)
    assert re.search(r"stream_0;active_allocated;layer\d.py:\d:forward;functional.py:1\d:linear \d+", stacks)
    assert "total_reserved" in _memory_viz.segsum(loaded)
    assert f"{len(loaded['device_traces'][0])} entries" in _memory_viz.trace(loaded)


#: What the reader of pytorch.org/memory_viz knows, and the protocols that it takes.
VIEWER = re.compile(
    "APPENDS?|BIN(FLOAT|GET|PUT|UNICODE)|BININT[12]?|(EMPTY_)?(DICT|LIST|TUPLE)|FRAME|LONG1|LONG_BIN(GET|PUT)|MARK|MEMOIZE"
    "|NEW(FALSE|TRUE)|NONE|PROTO|SETITEMS?|SHORT_BINUNICODE|STOP|TUPLE[123]"
)


@pytest.mark.parametrize("device", ["card", "second card", "cpu"])
def test_a_file_holds_the_dict_in_operations_of_viewers(tmp_path, device):
    """Also more events than are written at a time, and unknown values: of several events, and one that holds itself."""
    allocator = Allocator()
    run(allocator, 3000, random.Random(4), streams=(0, 9), pools=((0, 0), (0, 3)), deferred=True)
    snapshot = allocator.snapshot()
    if device == "second card":
        snapshot["device_traces"].insert(0, [])
        snapshot["segments"] = [{**segment, "device": 1} for segment in snapshot["segments"]]
    trace = snapshot["device_traces"][-1]
    trace[5]["endless"] = endless = [2.5, None]
    endless.append(endless)
    for event in trace[::2]:
        event["user_metadata"] = "step"
    recording = cpu_recording() if device == "cpu" else read(snapshot)
    write(tmp_path / "a.pickle", recording)
    data = (tmp_path / "a.pickle").read_bytes()
    loaded, whole = pickle.loads(data), to_snapshot(recording)
    if device != "cpu":
        assert len(loaded["device_traces"][-1]) > 3000
        (found,) = (event.pop("endless") for event in loaded["device_traces"][-1] if "endless" in event)
        assert (found[:2], found[2] is found) == ([2.5, None], True)
        assert [event.pop("endless") for event in whole["device_traces"][-1] if "endless" in event] == [endless]
    assert loaded == whole
    operations = {operation.name for operation, _, _ in pickletools.genops(data)}
    assert [name for name in operations if not VIEWER.fullmatch(name)] == []
    assert data.count(b"user_metadata") <= 1, "what comes again is written once"
    assert data[1] in (2, 3, 4)


def test_a_longer_list_of_events_takes_no_more_memory_to_write():
    """The most that is allocated meanwhile, beside the file."""

    def most(rows):
        shared = [frames := [{"filename": "a.py"}], "alloc"]
        events = ({"action": "alloc", "addr": 2**40 + number, "frames": frames} for number in range(rows))
        with open(os.devnull, "wb") as stream:
            tracemalloc.start()
            try:
                long_pickle.dump(stream, {"segments": []}, "device_traces", 0, events, shared)
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    most(2000)
    assert most(20_000) < 1.1 * most(2000)


def test_torch_reads_a_recording_of_the_cpu(tmp_path):
    write(tmp_path / "cpu.pickle", cpu_recording())
    loaded = pickle.loads((tmp_path / "cpu.pickle").read_bytes())
    actions = [entry["action"] for entry in loaded["device_traces"][0]]
    assert actions == (
        ["segment_alloc", "alloc"] * 2
        + ["free_requested", "free_completed", "segment_free"] * 2
        + ["oom", "segment_alloc", "alloc"]
    )
    assert "d = c[0:100.0B]" in _memory_viz.trace(loaded)
    text = _memory_viz.segments(loaded, format_flamegraph=lambda text: text)
    assert "stream_0;seg_512;active_allocated;a.py:2:f 100" in text
    assert _memory_viz.segsum(loaded).count("total_allocated: 139.0B") == 1


def test_a_recording_of_the_cpu_reads_back_as_one(tmp_path):
    """Device, events, numbers, owners and stacks are those that were written; only nanoseconds are rounded."""
    first = cpu_recording(first=1000, truncated=True)
    write(tmp_path / "cpu.pickle", first)
    back = read_file(tmp_path / "cpu.pickle", locator=Locator("/p"))
    assert str(back.device) == "cpu"
    assert (back.segments, back.first, back.truncated, back.notes) == ((), 1000, True, ())
    for name in ("kinds", "addresses", "sizes", "sequences", "owners", "threads", "times"):
        assert getattr(back.events, name) == getattr(first.events, name), name
    key = lambda block: block.address  # noqa: E731
    for one, other in zip(sorted(back.blocks, key=key), sorted(first.blocks, key=key), strict=True):
        assert (one.size, one.sequence, one.owner, one.thread) == (
            other.size,
            other.sequence,
            other.owner,
            other.thread,
        )
    assert str(replay(back).peak()) == str(replay(first).peak())
    assert [block.owner for block in replay(back).live_at()] == [block.owner for block in replay(first).live_at()]


def test_a_device_that_a_snapshot_is_not_of(tmp_path):
    write(tmp_path / "cpu.pickle", cpu_recording())
    write(tmp_path / "card.pickle", read(Allocator().snapshot()))
    with pytest.raises(SnapshotError, match=r"cpu.pickle: the snapshot is not of cuda:0: it is of cpu$"):
        read_file(tmp_path / "cpu.pickle", Device("cuda", 0))
    with pytest.raises(SnapshotError, match=r"card.pickle: the snapshot is not of cpu: it is of no device$"):
        read_file(tmp_path / "card.pickle", Device("cpu"))


def test_damaged_entries_of_the_cpu_are_left_out():
    snapshot = to_snapshot(cpu_recording())
    snapshot["device_traces"][0] += [5, {"action": "alloc", "addr": -1, "size": 1}, {"action": "alloc", "size": 2**63}]
    snapshot["segments"] += [7, {"blocks": [{"state": "active_allocated", "address": "a", "size": 1}]}]
    back = read(snapshot)
    assert back.notes == ("entries that are no blocks or events of the CPU were left out (4 times)",)
    assert (len(back.events), len(back.blocks)) == (6, 3)


def test_unknown_values_pass_unchanged(tmp_path):
    snapshot = Allocator().snapshot() | {"new": 1}
    snapshot["device_traces"] = [[{"action": "future", "addr": 1, "size": 2, "stream": 3, "frames": [], "more": [4]}]]
    snapshot["external_annotations"] = [{"name": "a", "stage": "START", "device": 0, "time_us": 5, "color": "red"}]
    exported = to_snapshot(read(snapshot))
    assert exported == snapshot


def test_a_dict_is_written_unchanged_and_failures_leave_nothing(tmp_path):
    write(tmp_path / "raw.pickle", {"segments": []})
    assert pickle.loads((tmp_path / "raw.pickle").read_bytes()) == {"segments": []}
    with pytest.raises((pickle.PicklingError, AttributeError)):
        write(tmp_path / "raw.pickle", {"segments": lambda: None})
    assert [file.name for file in tmp_path.iterdir()] == ["raw.pickle"]
    assert pickle.loads((tmp_path / "raw.pickle").read_bytes()) == {"segments": []}


def test_an_empty_recording_exports():
    assert read(to_snapshot(read_cpu([]))).blocks == ()
