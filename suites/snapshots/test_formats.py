"""Snapshots that the allocators of torch 2.7 to 2.14 wrote: one program, read to the byte from each."""

import functools
import json
import pickle
from collections import Counter
from pathlib import Path

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.pools import MAIN_POOL
from cudamem_testing.model.stacks import Locator
from cudamem_testing.snapshots.export import to_snapshot
from cudamem_testing.snapshots.read import devices, read
from cudamem_testing.snapshots.record import Kind, SnapshotError
from cudamem_testing.snapshots.replay import moment_before_last, moment_of, replay
from cudamem_testing.snapshots.snapshot_files import load, loads
from suites.snapshots.mutations import damaged_values
from suites.snapshots.test_bad_input import everything
from suites.snapshots.test_recordings import strings

FOLDER = Path(__file__).parents[2] / "fixtures" / "recordings"
MIB = 2**20
VERSIONS = tuple(f"2.{minor}" for minor in range(7, 15))
SCENES = ("everything", "expandable")
COUNTERS = ("allocated", "active", "requested")
#: What is left of the random requests, by their rule.
CHURNED = (3153865, 7946, 202056, 3146612)
#: What each version was the first to write.
NEW_IN_EVENTS = {"2.8": {"compile_context"}, "2.10": {"user_metadata"}, "2.12": {"pool_id"}}
NEW_SETTINGS = {"2.9": {"graph_capture_record_stream_reuse"}, "2.13": {"max_round_threshold", "max_cached_size"}}
NEW_AT_THE_TOP = {"2.14": {"host_segments", "host_traces"}}
NEW_ACTIONS = {"2.14": {"annotate"}}

every_version = pytest.mark.parametrize("version", VERSIONS)
every_scene = pytest.mark.parametrize("scene", SCENES)


@functools.cache
def told():
    """What was noted when they were recorded."""
    return json.loads((FOLDER / "formats.json").read_text())


def made(version, scene):
    return told()["versions"][version]["scenes"][scene]


@functools.cache
def snapshot(version, scene):
    return load(FOLDER / f"torch-{version}-{scene}.pickle.gz")


@functools.cache
def recorded(version, scene):
    return read(snapshot(version, scene), locator=Locator(""), max_entries=10_000)


def since(version, number):
    return VERSIONS.index(version) >= VERSIONS.index(number)


def added(version, news):
    """All that is new up to a version."""
    return set().union(*[names for first, names in news.items() if since(version, first)])


def live(replayed, name, moment=None):
    """Requested bytes, bytes, pool and stream of the blocks of a named line, in order of allocation."""
    where = f"formats.py:{told()['lines'][name]}"
    blocks = replayed.live_at(moment).blocks
    return [
        (block.requested, block.size, block.pool, block.stream)
        for block in blocks
        if block.stack.project_frame is not None
        and f"{block.stack.project_frame.file}:{block.stack.project_frame.line}" == where
    ]


def test_all_versions_are_there_and_small_and_neutral():
    assert sorted(told()["versions"]) == sorted(VERSIONS)
    files = sorted(FOLDER.glob("torch-*.gz"))
    assert [file.name for file in files] == sorted(
        f"torch-{version}-{scene}.pickle.gz" for version in VERSIONS for scene in (*SCENES, "state")
    )
    assert sum(file.stat().st_size for file in files) < 64 * 1024
    assert [text for file in files for text in strings(load(file)) if text.startswith("/")] == []
    for version in VERSIONS:
        assert told()["versions"][version]["torch"].startswith(f"{version}.")


@every_version
def test_what_each_version_writes(version):
    document = snapshot(version, "everything")
    trace, settings = document["device_traces"][0], document["allocator_settings"]
    basic = {"action", "addr", "size", "stream", "time_us", "frames"}
    assert set().union(*trace) - {"device_free"} == basic | added(version, NEW_IN_EVENTS)
    assert {entry["action"] for entry in trace} == (
        {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom"}
        | added(version, NEW_ACTIONS)
    )
    assert set(settings) == (
        {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold", "expandable_segments"}
        | {"pinned_num_register_threads", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register"}
        | {"roundup_power2_divisions"}
        | added(version, NEW_SETTINGS)
    )
    top = {"segments", "device_traces", "allocator_settings", "external_annotations"}
    assert set(document) == top | added(version, NEW_AT_THE_TOP)
    (expandable,) = snapshot(version, "expandable")["device_traces"]
    assert {entry["action"] for entry in expandable} >= {"segment_map", "segment_unmap"}
    assert devices(document) == (Device("cuda", 0),)


@every_version
@every_scene
@pytest.mark.parametrize("counter", COUNTERS)
def test_every_moment_and_the_peak_equal_the_counter(version, scene, counter):
    recording, moments = recorded(version, scene), made(version, scene)["moments"]
    assert (recording.notes, recording.truncated) == ((), False)
    replayed, end = replay(recording, counter), moments["end"]
    assert replayed.lives.notes == ()
    assert replayed.peak().total == end[f"{counter}_bytes.peak"]
    for counted in moments.values():
        after = [end[f"allocation.{kind}"] - counted[f"allocation.{kind}"] for kind in ("allocated", "freed")]
        moment = moment_before_last(recording, *after)
        assert replayed.totals[moment] == counted[f"{counter}_bytes.current"]
    assert recording.reserved == end["reserved_bytes.current"]


@every_version
def test_the_live_set_is_what_the_program_kept(version):
    recording = recorded(version, "everything")
    pool, graph = (tuple(made(version, "everything")[name]) for name in ("pool", "graph"))
    stream = made(version, "everything")["stream"]
    assert stream > 0
    assert set(recording.pools) == {pool, graph}
    replayed = replay(recording)
    assert live(replayed, "kept") == [
        (700, 1024, MAIN_POOL, 0),
        (3 * MIB + 77, 3 * MIB + 512, MAIN_POOL, 0),
        (20 * MIB + 1_200_000, 22 * MIB, MAIN_POOL, 0),
    ]
    assert live(replayed, "told") == [(5000, 5120, MAIN_POOL, 0)]
    assert live(replayed, "pooled") == [(4 * MIB, 4 * MIB, pool, 0)]
    ((*captured, _),) = live(replayed, "captured")
    assert captured == [6000, 6144, graph]
    assert live(replayed, "aside") == [(MIB + 5, MIB + 512, MAIN_POOL, stream)]
    assert live(replayed, "shared") == []
    assert live(replay(recording, "active"), "shared") == [(2 * MIB, 2 * MIB, MAIN_POOL, 0)]
    blocks = replayed.live_at().blocks
    assert sorted(block.requested for block in blocks if block.preexisting) == [3000, 5 * MIB + 1]
    function = [block.stack.project_frame.function if block.stack.frames else "" for block in blocks]
    churned = [block.requested for block, name in zip(blocks, function, strict=True) if name == "churn"]
    assert sorted(churned) == sorted(CHURNED)
    own = 0 if since(version, "2.14") else 2  # the seed and the offset of the graph's random numbers
    assert len(blocks) == 3 + 1 + 1 + 1 + 1 + 2 + len(CHURNED) + own
    assert [block.awaiting_free for block in recording.blocks].count(True) == 1


@every_version
def test_events_tell_their_pool_from_torch_2_12_on(version):
    recording = recorded(version, "everything")
    pools, made_there = recording.events.pools, made(version, "everything")
    if not since(version, "2.12"):
        assert pools is None
        return
    events = zip(recording.events.kinds, recording.events.sizes, pools, strict=True)
    found = {size: recording.pool(pool) for kind, size, pool in events if kind == Kind.ALLOC}
    expected = {4 * MIB: tuple(made_there["pool"]), 6000: tuple(made_there["graph"]), 5000: MAIN_POOL}
    assert {size: found[size] for size in expected} == expected


@every_version
def test_the_live_set_of_expandable_segments(version):
    recording = recorded(version, "expandable")
    graph, stream = tuple(made(version, "expandable")["graph"]), made(version, "expandable")["stream"]
    assert recording.settings.expandable
    assert {segment.expandable for segment in recording.segments} == {True}
    assert recording.pools == (graph,)
    replayed = replay(recording)
    assert live(replayed, "mapped") == [
        (700, 1024, MAIN_POOL, 0),
        (3 * MIB + 77, 3 * MIB + 512, MAIN_POOL, 0),
    ]
    assert live(replayed, "mapped_aside") == [(MIB + 5, MIB + 512, MAIN_POOL, stream)]
    ((*captured, _),) = live(replayed, "mapped_captured")
    assert captured == [6000, 6144, graph]


@every_version
def test_events_without_memory_of_their_own(version):
    recording = recorded(version, "everything")
    events = recording.events
    kinds = Counter(Kind(kind).name for kind in events.kinds)
    assert kinds["OTHER"] == 0
    assert kinds["ANNOTATE"] == (1 if since(version, "2.14") else 0)
    assert kinds["OOM"] == 1
    assert kinds["FREE_REQUESTED"] - kinds["FREE_COMPLETED"] == 1  # what waits for the second stream
    place = events.kinds.index(Kind.OOM)
    assert (events.sizes[place], events.addresses[place]) == (
        512 * MIB,
        80 * 1024 * MIB - reserved_at(recording, place),
    )
    assert [(one.name, one.stage) for one in recording.annotations] == [("scene", "START"), ("scene", "END")]
    begin = moment_of(recording, "scene")
    assert Kind(events.kinds[begin]) == Kind.FREE_REQUESTED
    assert events.sizes[begin] == 21 * MIB


def reserved_at(recording, moment):
    """Bytes that the allocator had taken at a moment, from the events of its segments after it."""
    events, held = recording.events, recording.reserved
    for place in range(moment, len(events)):
        change = {Kind.SEGMENT_ALLOC: -1, Kind.SEGMENT_FREE: 1}.get(events.kinds[place], 0)
        held += change * events.sizes[place]
    return held


@every_version
def test_annotations_of_the_program_keep_their_position(version):
    recording = recorded(version, "everything")
    events = recording.events
    told_at = next(place for place in range(len(events)) if events.sizes[place] == 5000)
    expected = {told_at: {"user_metadata": "layer 3"}} if since(version, "2.10") else {}
    if since(version, "2.14"):
        place = events.kinds.index(Kind.ANNOTATE)
        assert events.addresses[place] == events.addresses[told_at]
        expected[place] = {"user_metadata": "saved for backward"}
    assert events.extra == expected
    assert set(recording.extra or {}) == added(version, NEW_AT_THE_TOP)
    assert {segment.extra for segment in recording.segments} == {None}
    assert {block.extra for block in recording.blocks} == {None}


@every_version
def test_state_history_has_one_event_without_cpp_frames(version):
    recording = recorded(version, "state")
    assert len([text for text in strings(snapshot(version, "state")) if "::" in text]) > 10
    assert recording.notes == ()
    assert [*zip(recording.events.kinds, recording.events.sizes, strict=True)] == [(Kind.ALLOC, 3 * MIB + 77)]
    assert {(block.requested, block.size) for block in recording.blocks} == {(700, 1024), (3 * MIB + 77, 3 * MIB + 512)}
    for block in recording.blocks:
        stack = recording.stacks[block.stack]
        assert stack.frames[0].line == told()["lines"]["state"]
        assert [frame.function for frame in stack.frames] == ["state", "main", "<module>"]
    assert recording.allocated == made(version, "state")["moments"]["end"]["allocated_bytes.current"]


def test_pinned_host_memory_is_read_when_it_is_named():
    counted = made("2.14", "everything")["host"]
    recording = read(snapshot("2.14", "everything"), Device("host"), Locator(""), 10_000)
    assert (recording.notes, recording.pools, recording.annotations) == ((), (), ())
    assert {(block.size, block.awaiting_free) for block in recording.blocks} == {(8192, False), (131072, True)}
    for block in recording.blocks:
        assert recording.stacks[block.stack].project_frame.line == told()["lines"]["pinned"]
    assert recording.reserved == counted["allocated_bytes.current"] == 8192 + 131072 + 512
    active = replay(recording, "active")
    assert active.lives.notes == ()
    assert (active.totals[0], active.totals[-1]) == (0, counted["active_bytes.current"])
    assert active.peak().total == counted["active_bytes.peak"] == 8192 + 131072 + 512
    assert replay(recording).live_at().total == 8192
    assert [*replay(read(to_snapshot(recording))).totals] == [*replay(recording).totals]
    older = read(snapshot("2.13", "everything"), Device("host"))
    assert (older.blocks, older.segments) == ((), ())


@every_version
@pytest.mark.parametrize("scene", [*SCENES, "state"])
def test_pickles_of_all_protocols_and_json_are_read_alike(version, scene):
    document, recording = snapshot(version, scene), recorded(version, scene)
    for protocol in (2, 3, 4, 5):
        again = loads(pickle.dumps(document, protocol))
        assert again == document
        assert read(again, locator=Locator(""), max_entries=10_000) == recording
    again = read(loads(json.dumps(document).encode()), locator=Locator(""), max_entries=10_000)
    for part in ("blocks", "events", "segments", "pools", "settings", "annotations", "notes"):
        assert getattr(again, part) == getattr(recording, part), part
    assert [again.stacks[block.stack] for block in again.blocks] == [
        recording.stacks[block.stack] for block in recording.blocks
    ]


@every_version
@every_scene
def test_missing_addresses_and_a_bare_list_of_segments(version, scene):
    segments = pickle.loads(pickle.dumps(snapshot(version, scene)["segments"]))
    expected = recorded(version, scene)
    for segment in segments:
        for block in segment["blocks"]:
            del block["address"]
    bare = read(segments)
    assert [(block.address, block.size, block.requested, block.pool) for block in bare.blocks] == [
        (block.address, block.size, block.requested, block.pool) for block in expected.blocks
    ]
    assert [*replay(bare, "active").totals] == [replay(expected, "active").totals[-1]]


@every_version
@every_scene
def test_exports_read_back(version, scene):
    recording = recorded(version, scene)
    again = read(to_snapshot(recording))
    for counter in COUNTERS:
        assert [*replay(again, counter).totals] == [*replay(recording, counter).totals]
    assert (again.events.kinds, again.events.extra) == (recording.events.kinds, recording.events.extra)
    assert (again.pools, again.annotations, again.settings) == (
        recording.pools,
        recording.annotations,
        recording.settings,
    )


@every_version
def test_damaged(version):
    for scene in (*SCENES, "state"):
        for seed in range(6):
            try:
                everything(damaged_values(snapshot(version, scene), seed))
            except SnapshotError as error:
                assert 10 < len(str(error)) < 400  # noqa: PT017
