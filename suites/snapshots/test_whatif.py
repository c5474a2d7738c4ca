"""The model of the allocator, asked what other settings would have changed, against recordings made with them."""

from __future__ import annotations

import ast
import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.allocator_settings import AllocatorSettings
from cudamem_testing.recorders import build
from cudamem_testing.snapshots.fragmentation import fragmentation
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.snapshots.record import Recording
from cudamem_testing.snapshots.snapshot_files import read_file
from cudamem_testing.snapshots.whatif import answers, model
from cudamem_testing.snapshots.whatif.answers import what_if
from cudamem_testing.snapshots.whatif.job import Capacity, Prepared, prepare
from cudamem_testing.snapshots.whatif.model import Job
from cudamem_testing.snapshots.whatif.model import run as replay_on_model
from cudamem_testing.snapshots.whatif.text import what_if_lines, why_lines
from cudamem_testing.snapshots.whatif.why import why
from suites.snapshots.allocator import MIB, Allocator, run

ROOT = Path(__file__).parents[2] / "fixtures"
RECORDINGS = sorted((ROOT / "recordings").glob("*.pickle.gz"))
LETTERS = {
    "a": "alloc",
    "f": "free_requested",
    "c": "free_completed",
    "o": "oom",
    "p": "snapshot",
    "S": "segment_alloc",
    "s": "segment_free",
    "M": "segment_map",
    "m": "segment_unmap",
}
SPLIT = "max_split_size_mb:512"
#: A limit under which two of the settings were recorded, in bytes.
LIMIT = 700 * MIB


def as_recorded(prepared: Prepared) -> model.Ran:
    return replay_on_model(replace(prepared.job, capacity=None), prepared.settings, course=True)


@pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: file.name.partition(".pickle")[0])
def test_the_model_reserves_what_a_card_did(file: Path) -> None:
    """After every event; only a request that failed may now find room, because no limit is set here."""
    prepared = prepare(read_file(file))
    ran = as_recorded(prepared)
    positions, reserved = prepared.positions, prepared.reserved
    assert ran.failed == 0
    assert ran.course is not None
    for place in range(len(positions) - (prepared.failed is not None)):
        assert ran.course[place] == reserved[positions[place] + 1], place
    assert ran.peak_reserved == prepared.peak_reserved or prepared.failed is not None


@cache
def streams() -> dict[str, Recording]:
    """One program of 1,500 steps on three streams, recorded on a card under eight settings."""
    return {name: read(one) for name, one in raw_streams().items()}


@cache
def raw_streams() -> dict[str, dict[str, Any]]:
    """Their snapshots."""
    found = {}
    for name, one in json.loads(gzip.decompress((ROOT / "simulated/requests.json.gz").read_bytes())).items():
        trace = [
            {"action": LETTERS[kind], "addr": address, "size": size, "stream": more[0] if more else 0}
            for kind, address, size, *more in one["events"]
        ]
        raw = one["settings"]
        settings = {key: ast.literal_eval(value) for key, value in raw.items() if key != "PYTORCH_CUDA_ALLOC_CONF"}
        found[name] = {"segments": one["segments"], "device_traces": [trace], "allocator_settings": settings}
    return found


def predicted(name: str, other: str) -> float:
    """By which share the peak that is predicted for a setting from the record of another one is too high."""
    mine, theirs = prepare(streams()[name]), prepare(streams()[other])
    limited = other == "collecting"  # it only collects under a limit
    job = replace(mine.job, capacity=LIMIT if limited else None, limited=limited)
    return replay_on_model(job, theirs.settings).peak_reserved / theirs.peak_reserved - 1


SETTINGS = (
    "default",
    "expandable",
    "collecting",
    "split",
    "roundup",
    "roundup_list",
    "expandable_collecting",
    "per_process",
)


@pytest.mark.parametrize("other", SETTINGS)
def test_what_a_setting_would_reserve_is_what_it_did_reserve(other: str) -> None:
    """From the record of each other setting: to the byte, but for ``max_split_size_mb`` (1.5 %)."""
    found = {name: predicted(name, other) for name in SETTINGS if name != "collecting"}
    assert all(abs(off) < (0.016 if other == "split" else 1e-9) for off in found.values()), found


def cut(name: str, allocations: int) -> Recording:
    """The record of a setting without its first events, as a ring that was too small keeps it."""
    snapshot = raw_streams()[name]
    trace = snapshot["device_traces"][0]
    first = [place for place, event in enumerate(trace) if event["action"] == "alloc"][allocations]
    return read({**snapshot, "device_traces": [trace[first:]]})


@pytest.mark.parametrize("part", [0.3, 0.75, 0.9])
def test_the_answer_for_a_record_that_was_cut_off_is_a_range(part: float) -> None:
    """What a run with the setting reserved lies in it, or 6 % beside it; the first 40 % of a record can be missing."""
    names = ("default", "expandable", "split", "roundup")
    records = {name: cut(name, int(part * 731)) for name in names}
    prepared = {name: prepare(one) for name, one in records.items()}
    for name in names:
        others = [other for other in names if other != name]
        asked = what_if(records[name], more=[prepared[other].settings for other in others])
        for other, one in zip(others, asked.answers[-len(others) :], strict=True):
            real = prepared[other].peak_reserved
            assert one.peak_reserved / 1.06 <= real <= one.at_most * 1.06, (name, other)
            assert part > 0.5 or one.at_most <= 1.06 * one.peak_reserved, (name, other)


def test_what_depends_on_the_start_is_unknown() -> None:
    """30 MiB from before lie in the middle of 100 MiB: in a row with them the request fits, beside them it does not."""
    allocator, blocks = held([100])
    allocator.free(blocks[0])
    first, _, third = (allocator.malloc(size * MIB) for size in (34, 30, 36))
    allocator.restart()
    allocator.free(first)
    allocator.free(third)
    asked = what_if(fails(allocator, 60, 0), more=[AllocatorSettings.read({"PYTORCH_ALLOC_CONF": SPLIT})])
    (one,) = (answer for answer in asked.answers if answer.what == SPLIT)
    assert (one.fits, one.peak_reserved, one.at_most) == (None, 100 * MIB, 100 * MIB)
    assert asked.best is None
    (line,) = (line for line in what_if_lines(asked) if SPLIT in line)
    assert line.endswith("whether the request fits depends on where the live blocks of before lie")


def test_a_model_that_differs_recommends_nothing() -> None:
    asked = what_if(cut("collecting", 200))
    assert asked.off > 0.4
    assert any(one.at_most < asked.model for one in asked.answers)
    assert (asked.reliable, asked.best) == (False, None)
    assert "It is off by +46 %: do not rely on these answers" in [*what_if_lines(asked)][-1]


def test_pools_that_the_history_does_not_name_are_noted() -> None:
    (note,) = what_if(read_file(ROOT / "recordings/captured_graph.pickle.gz")).notes
    assert note.startswith("the history does not say in which pool an event was")
    assert what_if(read_file(ROOT / "recordings/torch-2.13-everything.pickle.gz")).notes == ()


def test_a_collecting_allocator_hides_an_emptied_cache() -> None:
    """Documented: its own collections and ``empty_cache()`` look alike, so that other settings seem to need more."""
    assert predicted("collecting", "collecting") == 0
    assert 0 < predicted("collecting", "default") < 0.25


@given(st.integers(0, 10**9), st.sampled_from([-1, 32 * MIB]), st.sampled_from([None, 4]))
def test_the_model_agrees_with_a_simple_allocator(seed: int, split: int, roundup: int | None) -> None:
    """From the record of one setting the reserved bytes of another, with two streams and a private pool."""

    def recorded(**settings: Any) -> Prepared:
        allocator = Allocator(**settings)
        run(allocator, 80, random.Random(seed), streams=(0, 9), pools=((0, 0), (0, 3)))
        snapshot = allocator.snapshot()
        for event, pool in zip(snapshot["device_traces"][0], pools_of(allocator), strict=True):
            event["pool_id"] = pool
        return prepare(read(snapshot))

    plain, other = recorded(), recorded(max_split_size=split, roundup=roundup)
    assert as_recorded(plain).peak_reserved == plain.peak_reserved
    assert as_recorded(plain).reserved == plain.reserved[-1]
    asked = replay_on_model(plain.job, other.settings)
    if split < 0 and roundup is None:
        assert (asked.peak_reserved, asked.reserved) == (other.peak_reserved, other.reserved[-1])
    elif split < 0:  # more blocks are equal then, and the addresses of the other run decide between them
        assert asked.peak_reserved == pytest.approx(other.peak_reserved, rel=0.05)


def pools_of(allocator: Allocator) -> Iterator[tuple[int, int]]:
    """The pool of each event: that of the segment around its address, which no other segment ever has."""
    known: dict[int, tuple[int, int]] = {}
    spans = [(one.address, one.address + one.size, one.pool) for one in allocator.every]
    for event in allocator.trace:
        address = event["addr"]
        yield known.setdefault(address, next(pool for start, end, pool in spans if start <= address < end))


def held(sizes: list[int], **settings: Any) -> tuple[Allocator, list[Any]]:
    allocator = Allocator(**settings)
    return allocator, [allocator.malloc(size * MIB) for size in sizes]


def fails(allocator: Allocator, size: int, free: int) -> Recording:
    """The record of an allocator that a request of so many MiB fails on, with so many MiB left on the card."""
    snapshot = allocator.snapshot()
    snapshot["device_traces"][0].append(
        {"action": "oom", "device_free": free * MIB, "size": size * MIB, "stream": 0, "time_us": allocator.clock + 5000}
    )
    return read(snapshot)


def fragmented() -> Recording:
    """Four segments of 30 MiB with a block of 16 MiB in each: 56 MiB are unused, and a request of 40 MiB fails."""
    allocator, blocks = held([30] * 4)
    for block in blocks:
        allocator.free(block)
    for _ in blocks:
        allocator.malloc(16 * MIB)
    return fails(allocator, 40, 2)


def test_why_a_request_did_not_fit() -> None:
    found = why(fragmented())
    assert found is not None
    assert (found.requested, found.live, found.unused, found.largest_free) == (40 * MIB, 64 * MIB, 56 * MIB, 14 * MIB)
    assert (found.split, found.reserved, found.capacity) == (56 * MIB, 120 * MIB, Capacity(122 * MIB, 122 * MIB + 1))
    assert (found.fragmented, found.fragmentation) == (True, 0.75)
    assert (found.by_segments, found.moved, found.gained) == (True, 32 * MIB, 60 * MIB)
    lines = [*why_lines(found)]
    words = "56.0 MiB are unused, which would be enough, but no free range is larger than 14.0 MiB (fragmentation 75 %)"
    assert lines[-3:-1] == [
        f"fragmentation: {words}",
        "in the way: 32.0 MiB of live blocks; without them segments of 60.0 MiB could be returned to the card",
    ]
    assert lines[-1].split()[:5] == ["32.0", "MiB", "2", "blocks", "project/layer2.py:2"]


def test_ranges_left_to_larger_requests() -> None:
    """A free block of 100 MiB serves no request of 30 MiB under a limit of 64 MiB, one of 40 MiB would."""
    allocator, blocks = held([100, 50, 40], max_split_size=64 * MIB)
    allocator.free(blocks[0])
    kept = allocator.malloc(20 * MIB)
    found = why(fails(allocator, 45, 2))
    assert found is not None
    assert kept.segment is not blocks[0].segment
    assert (found.largest_free, found.withheld, found.unused) == (0, 100 * MIB, 100 * MIB)
    assert (
        "fragmentation: 100.0 MiB are unused, which would be enough, but no free range that it may use is larger than "
        "0 B: max_split_size_mb leaves 100.0 MiB to larger requests"
    ) in [*why_lines(found)]
    use = fragmentation(fails(allocator, 45, 2))
    assert not use.serves(fails(allocator, 45, 2), 45 * MIB).fits
    assert use.serves(fails(allocator, 45, 2), 90 * MIB).fits


def test_other_settings_stay_beside_the_one_that_is_asked_for() -> None:
    allocator, blocks = held([30, 100], max_split_size=64 * MIB)
    allocator.free(blocks[1])
    names = {one.what for one in what_if(fails(allocator, 40, 0)).answers}
    assert "expandable_segments:True,max_split_size_mb:64" in names
    assert "max_split_size_mb:64" not in names
    mine = AllocatorSettings(text="roundup_power2_divisions:[256:1,>:2],expandable_segments:False")
    assert mine.named(expandable_segments="True") == ("expandable_segments:True,roundup_power2_divisions:[256:1,>:2]")


def test_the_blocks_that_cost_least_to_move() -> None:
    """A row in one segment: between two gaps lies a block of 2 MiB, beside it one of 8 MiB."""
    allocator, blocks = held([100])
    allocator.free(blocks[0])
    first, _, third, _ = (allocator.malloc(size * MIB) for size in (30, 8, 30, 2))
    allocator.free(first)
    allocator.free(third)
    found = why(fails(allocator, 65, 0))
    assert found is not None
    assert not found.by_segments
    assert (found.moved, found.gained) == (8 * MIB, 68 * MIB)
    (one,) = found.obstacles
    assert (one.size, one.blocks, one.before) == (8 * MIB, 1, False)
    assert one.oldest == one.newest == 5000 + 7 * 6


def test_too_little_memory_is_no_fragmentation() -> None:
    allocator, _ = held([60, 20])
    lines = [*why_lines(why(fails(allocator, 40, 10)))]  # type: ignore[arg-type]
    assert lines[0] == "out of memory on cuda:0: 40.0 MiB requested"
    assert (
        "too little memory: 80.0 MiB are live and 40.0 MiB more were requested, and 90.0 MiB can be reserved; "
        "0 B are unused"
    ) in lines


def test_unused_memory_may_be_enough_with_what_is_left() -> None:
    allocator, blocks = held([30, 30])
    allocator.free(blocks[0])
    (line,) = (line for line in why_lines(why(fails(allocator, 40, 15))) if line.startswith("frag"))  # type: ignore[arg-type]
    assert line == (
        "fragmentation: 30.0 MiB are unused, enough with the 15.0 MiB that can still be reserved, but no free range is "
        "larger than 30.0 MiB (fragmentation 0 %)"
    )


def test_what_can_be_reserved_may_be_known_at_least() -> None:
    allocator, _ = held([60])
    lines = [*why_lines(why(fails(allocator, 40, 500)))]  # type: ignore[arg-type]
    words = (
        "too little memory: 60.0 MiB are live and 40.0 MiB more were requested, and at least 60.0 MiB can be reserved"
    )
    assert f"{words}; 0 B are unused" in lines


def test_the_sentence_of_the_best_change() -> None:
    asked = what_if(fragmented())
    assert asked.recorded == asked.model == 120 * MIB
    assert [*what_if_lines(asked)] == [
        "with expandable_segments:True: peak reserved 120.0 MiB, as recorded, the request fits",
        "peak reserved with each change",
        "   expandable_segments:True                120.0 MiB, as recorded  the request fits",
        (
            "   max_split_size_mb:32                    120.0 MiB, as recorded  "
            "the request does not fit: the largest free range is 14.0 MiB"
        ),
        "   empty_cache() at 1 low point of memory  120.0 MiB, as recorded  the request fits",
        (
            "17 events replayed on a model of the allocator; with the recorded settings it reserves 120.0 MiB, "
            "120.0 MiB were recorded"
        ),
    ]


def test_answers_that_contradict_the_record() -> None:
    """The request failed beside a free range that is large enough: the record is not of this allocator."""
    allocator, blocks = held([100])
    allocator.free(blocks[0])
    asked = what_if(fails(allocator, 40, 0))
    assert (asked.contradicted, asked.best) == (True, None)
    assert asked.answers[0].fits is True
    *_, last = what_if_lines(asked)
    words = "The request that failed fits on it with these settings: do not rely on what it says of the request"
    assert last.endswith(f"100.0 MiB were recorded. {words}")
    assert not what_if(fragmented()).contradicted


def test_a_record_for_which_nothing_is_tried_says_so() -> None:
    recording = read_file(ROOT / "recordings/expandable_segments.pickle.gz")
    assert next(what_if_lines(what_if(recording))) == (
        "no other settings were tried: segments are expandable already; name some with --with"
    )


def test_limits_that_no_block_reaches_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(job: Job, settings: AllocatorSettings, **more: Any) -> Any:
        asked.append(settings)
        return replay_on_model(job, settings, **more)

    monkeypatch.setattr(answers, "run", counted)
    allocator, _ = held([3, 5, 30, 100])
    found = what_if(read(allocator.snapshot()))
    assert [(one.expandable, one.max_split // MIB) for one in asked] == [
        (False, 0),
        (True, 0),
        (False, 32),
        (False, 64),
    ]
    assert {one.what for one in found.answers} == {"expandable_segments:True", "max_split_size_mb:32"}


def test_settings_that_are_asked_for_are_answered() -> None:
    allocator, _ = held([3, 5, 30])
    mine = AllocatorSettings.read({"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:2"})
    asked = what_if(read(allocator.snapshot()), more=[mine])
    last = asked.answers[-1]
    assert (last.what, last.peak_reserved, last.fits) == ("roundup_power2_divisions:2", 52 * MIB, None)
    assert asked.best is None or asked.best.peak_reserved < asked.recorded


def test_private_pools_that_hold_what_they_do_not_use() -> None:
    allocator = Allocator()
    allocator.malloc(30 * MIB)
    for number in (1, 2):
        allocator.free(allocator.malloc(20 * MIB, pool=(0, number)))
    recording = fails(allocator, 40, 10)
    answers = {one.what: one for one in what_if(recording).answers if one.kind == "pool"}
    assert answers["private pools without the 40.0 MiB that they do not use"].fits is True
    found = why(recording)
    assert found is not None
    assert found.private_unused == 40 * MIB


def test_a_limit_of_torch_is_known_within_bounds() -> None:
    """The card had room: the limit lies between what was reserved and what the request would have made of it."""
    allocator, _ = held([30])
    assert prepare(fails(allocator, 40, 500)).capacity == Capacity(30 * MIB, 70 * MIB, limited=True)
    assert prepare(fails(allocator, 40, 500), 64 * MIB).capacity == Capacity(64 * MIB, 64 * MIB + 1, limited=True)


def test_without_a_compiler_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise build.RecorderUnavailable("no C++ compiler found (looked for c++)")

    monkeypatch.setattr(model, "_library", none)
    with pytest.raises(build.RecorderUnavailable, match="no C"):
        what_if(read(held([3])[0].snapshot()))


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^cpu has no caching allocator: there is nothing to ask the model$"):
        prepare(read_cpu([(1, 2, 3, 0, 0, 0)]))
    with pytest.raises(ValueError, match=r"^no events were recorded: there is nothing to replay$"):
        prepare(read({"segments": []}))
    assert why(read({"segments": []})) is None
