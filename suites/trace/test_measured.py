"""Laying the profile's moves beside the recorder's; and real programs, to the byte."""

from __future__ import annotations

import gc
import threading
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.recorders.choose import Recorders
from cudamem_testing.strategies import random_programs as programs
from cudamem_testing.trace.measured import NO_EVENTS, Measured, Move, measure, merge
from cudamem_testing.trace.profile import MemoryProfile
from cudamem_testing.windows.tracker import Tracker
from suites.trace.test_differential import SO_LARGE


@pytest.fixture
def tracker():
    """The CPU recorder with its events; no garbage of earlier tests is there to be freed meanwhile."""
    gc.collect()
    recorders = Recorders("cpu", record=True)
    opened = recorders.open()
    if not opened[0].tells_blocks:
        pytest.skip("only the compiled recorder records single blocks of the CPU")
    for recorder in opened:
        recorder.wake(limited=True)
    yield Tracker(opened)
    recorders.close()


def moves(*rows):
    return [Move(time, "cpu", pointer, nbytes, None, place) for place, (time, pointer, nbytes) in enumerate(rows)]


def merged(theirs, ours):
    found = merge(Measured("cpu", {}, {}, moves=tuple(theirs)), moves(*ours))
    return [(move.time, move.pointer, move.nbytes, move.event) for move in found]


def test_without_events_the_profile_stands():
    ours = moves((1, 2, 3))
    assert merge(Measured("cpu", {}, {}), ours) == ours


def test_what_only_the_recorder_saw_keeps_its_place():
    assert merged(
        [(1, 100, 8), (2, 500, -64), (3, 100, -8), (4, 600, 5)],
        [(9000, 100, 8), (11_000, 100, -8)],
    ) == [(9000, 100, 8, 0), (10_000, 500, -64, -1), (11_000, 100, -8, 1), (11_000, 600, 5, -1)]


def test_the_nearest_moves_in_time_are_matched():
    found = merged(
        [(1, 9, 1), (10, 100, 8), (20, 100, -8), (30, 100, 8), (40, 100, -8), (50, 9, -1)],
        [(1000, 9, 1), (30_000, 100, 8), (40_000, 100, -8), (50_000, 9, -1)],
    )
    assert [event for *_, event in found] == [0, -1, -1, 1, 2, 3]


def test_what_only_the_profile_saw_stays():
    assert merged([(1, 9, 1)], [(1000, 9, 1), (2000, 10, 4)]) == [(1000, 9, 1, 0), (2000, 10, 4, 1)]
    assert merged([], []) == []
    assert merged([(5, 9, 1)], []) == [(0, 9, 1, -1)]


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=40))
def test_no_change_is_lost_and_totals_are_the_recorders(history):
    """A made-up allocator; the profile sees a part of what it does, with its own clock."""
    theirs, ours, live = [], [], set()
    for place, (pointer, is_seen) in enumerate(history):
        nbytes = -8 if pointer in live else 8
        live ^= {pointer}
        theirs.append((place * 10, pointer, nbytes))
        if is_seen:
            ours.append((place * 10_000 + 77_000, pointer, nbytes))
    found = merge(Measured("cpu", {}, {}, moves=tuple(theirs)), moves(*ours))
    assert [(move.pointer, move.nbytes) for move in found] == [(pointer, nbytes) for _, pointer, nbytes in theirs]
    assert sorted(move.event for move in found if move.event >= 0) == [*range(len(ours))]


def test_older_blocks_and_other_threads_are_seen_to_the_byte(tracker):
    older = [torch.ones(1000), torch.ones(2000)]
    kept = []

    def run():
        older.pop(0).sin_()
        worker = threading.Thread(target=lambda: kept.append(torch.ones(5000) * 2))
        worker.start()
        worker.join()
        kept.append(torch.ones(3000).cos())

    with MemoryProfile(tracker=tracker) as profile:
        run()
    (measured,) = profile.timeline().measured
    peak = profile.peak("cpu")
    assert measured.start is not None
    assert measured.peak - measured.start == 4 * (5000 + 2 * 3000 - 1000)
    assert (peak.total, peak.measured, peak.differences) == (measured.peak, measured.peak, ())
    assert profile.timeline().series("cpu").totals[-1] == measured.end
    assert profile.timeline().notes == ()


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
def test_programs_to_the_byte(tracker, seed):
    run = programs.make(seed).compile()
    with warnings.catch_warnings(), MemoryProfile(tracker=tracker) as profile:
        warnings.simplefilter("ignore")
        run()
    (measured,) = profile.timeline().measured
    peak = profile.peak("cpu")
    foreign = sum(one.nbytes for one in peak.differences)
    assert peak.total - foreign == measured.peak
    assert {one.reason for one in peak.differences} <= {
        "memory that the allocator did not give, or gave before the recorder began"
    }


def test_without_events_the_difference_is_itemised():
    gc.collect()
    recorders = Recorders("cpu")
    tracker = Tracker(recorders.open())
    try:
        older = [torch.ones(1000)]
        with MemoryProfile(tracker=tracker) as profile:
            programs.in_thread(older.clear)  # the profiler sees other threads never, this one by chance
            kept = torch.empty(SO_LARGE)  # lies by itself, not where the small one was
        del kept
        peak = profile.peak("cpu")
        assert peak.total - peak.measured == 4000
        assert [tuple(one) for one in peak.differences] == [(4000, "blocks that were freed without a recorded event")]
        lines = str(peak).splitlines()
        assert lines[-2] == "  4000 bytes more: blocks that were freed without a recorded event"
        assert lines[-1] == f"note: cpu: {NO_EVENTS}"
        assert lines[-3].endswith(f" {peak.total} is 4000 bytes more:")
    finally:
        recorders.close()


def test_nothing_is_measured_without_recorders():
    with measure(Tracker()) as measurement:
        pass
    assert measurement.results == ()
