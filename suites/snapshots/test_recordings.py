"""Snapshots recorded on a card: what is reported must add up to what the allocator itself counted there."""

import functools
import json
import pickle
from pathlib import Path

import pytest

from cudamem_testing.model.stacks import Locator
from cudamem_testing.oom.explain import explain
from cudamem_testing.snapshots.export import to_snapshot
from cudamem_testing.snapshots.fragmentation import fragmentation
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.record import Kind, SnapshotError
from cudamem_testing.snapshots.replay import moment_before_last, moment_of, replay
from cudamem_testing.snapshots.snapshot_files import load, read_file
from suites.snapshots.mutations import damaged_values
from suites.snapshots.test_bad_input import everything

FOLDER = Path(__file__).parents[2] / "fixtures" / "recordings"
PROGRAMS = ("inference", "training_step", "attention", "adam_foreach", "odd_sizes", "random_small", "random_large")
PROGRAMS += ("frees_what_was_there", "side_stream", "checkpointed")
SCENES = ("captured_graph", "expandable_segments", "several_streams", "out_of_memory")
ALL = sorted(PROGRAMS + SCENES)
MARKED = sorted({*ALL} - {"adam_foreach", "random_small", "random_large", "frees_what_was_there", "checkpointed"})


@functools.cache
def measured():
    """What the card's counters said."""
    return json.loads((FOLDER / "measured.json").read_text())


def counted(name):
    return measured()["recordings"][name]


def marked_line(name):
    return f"programs.py:{measured()['lines'][name]} in {name}"


def recorded(name):
    return read_file(FOLDER / f"{name}.pickle.gz", locator=Locator(""), max_entries=measured()["max_entries"])


def test_all_exist_and_are_small_and_neutral():
    assert sorted(measured()["recordings"]) == ALL
    assert sorted(measured()["lines"]) == MARKED
    assert sum(file.stat().st_size for file in FOLDER.glob("*.gz")) < 1.5 * 2**20
    for name in ALL:
        for text in strings(load(FOLDER / f"{name}.pickle.gz")):
            assert not text.startswith("/"), text


def strings(value):
    found, todo, seen = set(), [value], set()
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            found.add(item)
        elif isinstance(item, (dict, list, tuple)) and id(item) not in seen:
            seen.add(id(item))
            todo += item.values() if isinstance(item, dict) else item
    return found


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("counter", ["allocated", "active", "requested"])
def test_start_peak_and_end_equal_the_cards_counters(name, counter):
    recording, start, end = recorded(name), counted(name)["start"], counted(name)["end"]
    assert (recording.notes, recording.truncated) == ((), False)
    replayed = replay(recording, counter)
    assert replayed.lives.notes == ()
    key = f"{counter}_bytes"
    assert replayed.totals[0] == start[f"{key}.current"]
    peak = replayed.peak()
    assert peak.total == end[f"{key}.peak"]
    assert sum(block.size for block in peak.live.blocks) == end[f"{key}.peak"]
    if name != "side_stream":  # read while that stream was still running
        assert replayed.totals[-1] == end[f"{key}.current"]


@pytest.mark.parametrize("name", ALL)
def test_segments_add_up_to_what_was_reserved_and_split(name):
    use, end = fragmentation(recorded(name)), counted(name)["end"]
    assert use.reserved == end["reserved_bytes.current"]
    if name not in ("side_stream", "expandable_segments"):
        split = use.main.split + sum(pool.split for pool in use.private)
        assert split == end["inactive_split_bytes.current"]


@pytest.mark.parametrize("name", ALL)
def test_the_start_of_the_program_is_found_by_counts(name):
    replayed, start, end = replay(recorded(name)), counted(name)["start"], counted(name)["end"]
    allocations = end["allocation.allocated"] - start["allocation.allocated"]
    frees = end["allocation.freed"] - start["allocation.freed"]
    moment = moment_before_last(replayed.recording, allocations, frees)
    assert replayed.totals[moment] == start["allocated_bytes.current"]
    assert Kind.ALLOC not in replayed.recording.events.kinds[:moment]


@pytest.mark.parametrize("name", MARKED)
def test_the_marked_line_is_live_at_the_peak_or_failed(name):
    recording = recorded(name)
    stacks = [block.stack for block in replay(recording).peak().live.blocks]
    failed = recording.events.kinds.find(Kind.OOM)
    stacks += [recording.stacks[recording.events.stacks[failed]]] if failed >= 0 else []
    lines = {f"{frame.file}:{frame.line} in {frame.function}" for stack in stacks for frame in stack.frames}
    assert marked_line(name) in lines


def test_a_captured_graphs_pool_is_private():
    use = fragmentation(recorded("captured_graph"))
    assert [pool.pool for pool in use.private] == [*recorded("captured_graph").pools]
    assert len(use.private) == 1
    assert use.private[0].reserved > 0


def test_a_freed_block_is_active_while_a_second_stream_uses_it():
    recording = recorded("side_stream")
    allocated, active = replay(recording).totals, replay(recording, "active").totals
    waiting = {more - less for more, less in zip(active, allocated, strict=True)}
    assert min(waiting) == 0
    assert 4 * 2**20 in waiting


def test_annotations_mark_the_program():
    recording = recorded("training_step")
    assert moment_of(recording, "run training_step") == 0
    assert moment_of(recording, "run training_step", "END") == len(recording.events)


def test_out_of_memory_is_explained():
    told = counted("out_of_memory")
    recording = recorded("out_of_memory")
    error = explain(recording, 200 * 2**20, allowed=told["limit"], others=0)
    stack = recording.stacks[recording.events.stacks[recording.events.kinds.rfind(Kind.OOM)]]
    assert error.free == told["observer"]["free"]
    assert error.blame == "fragmentation"
    assert (error.where, str(stack.called_from)) == (stack.where, marked_line("out_of_memory"))
    assert "programs.py" in error.live.text()


@pytest.mark.parametrize("name", ALL)
def test_exports_read_back(name):
    recording = recorded(name)
    again = read(to_snapshot(recording))
    assert [*replay(again).totals] == [*replay(recording).totals]
    assert again.events.extra == recording.events.extra


@pytest.mark.parametrize("name", ALL)
def test_damaged_recordings(name):
    snapshot = load(FOLDER / f"{name}.pickle.gz")
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    for seed in range(12):
        try:
            everything(damaged_values(snapshot, seed))
        except SnapshotError as error:
            assert 10 < len(str(error)) < 400  # noqa: PT017
