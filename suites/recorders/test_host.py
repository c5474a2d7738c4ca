"""Pinned host memory, on a model of CUDA's host allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing import torch_api
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders import host
from cudamem_testing.recorders.card_recorder import HostWatch
from cudamem_testing.recorders.host import PEAK_RESET, READER, ZERO, HostRecorder
from cudamem_testing.windows.tracker import Tracker

PAGE = 4096
Stats = dict[str, dict[str, int]]


class Pinned:
    """Blocks of whole pages, which the allocator keeps when they are given back."""

    def __init__(self) -> None:
        self.initialized = True
        names = ("active_bytes", "allocated_bytes", "active_requests", "segments")
        self.stats: Stats = {name: dict.fromkeys(("current", "peak", "allocated", "freed"), 0) for name in names}
        self.reads = 0
        self.names: dict[str, str] = {}  # other names of the statistics
        self.bindings = SimpleNamespace(**{READER: self.read, PEAK_RESET: self.reset})

    def read(self) -> Stats:
        self.reads += 1
        return {self.names.get(name, name): dict(stat) for name, stat in self.stats.items()}

    def reset(self) -> None:
        for stat in self.stats.values():
            stat["peak"] = stat["current"]

    def pin(self, pages: int) -> None:
        """Pin pages, or give them back."""
        missing = self.stats["active_bytes"]["current"] + pages * PAGE - self.stats["allocated_bytes"]["current"]
        changes = {"active_bytes": pages * PAGE, "active_requests": 1 if pages > 0 else -1}
        for name, by in {**changes, "allocated_bytes": max(missing, 0)}.items():
            stat = self.stats[name]
            stat["current"] += by
            stat["allocated" if by > 0 else "freed"] += abs(by)
            stat["peak"] = max(stat["peak"], stat["current"])


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> Pinned:
    pinned = Pinned()
    monkeypatch.setattr(torch_api, "bindings", lambda: pinned.bindings)
    monkeypatch.setattr(torch_api, "cuda_function", lambda name: getattr(pinned.bindings, name, None))
    monkeypatch.setattr(torch_api, "cuda_initialized", lambda: pinned.initialized)
    return pinned


@pytest.fixture
def recorder(pinned: Pinned) -> Iterator[HostRecorder]:
    recorder = HostRecorder()
    yield recorder
    recorder.close()


def test_counters(pinned: Pinned, recorder: HostRecorder) -> None:
    pinned.pin(3)
    pinned.pin(2)
    pinned.pin(-3)
    assert recorder.read_and_reset_peaks() == Counters(
        allocated=2 * PAGE,
        allocated_peak=5 * PAGE,
        reserved=5 * PAGE,
        reserved_peak=5 * PAGE,
        allocations=2,
        blocks=1,
    )
    again = recorder.read_and_reset_peaks()
    assert (again.allocated_peak, again.reserved_peak) == (2 * PAGE, 5 * PAGE)


def test_the_names_before_torch_2_10(pinned: Pinned, recorder: HostRecorder) -> None:
    pinned.names = {"active_bytes": "allocated_bytes", "allocated_bytes": "reserved_bytes"}
    pinned.names |= {"active_requests": "allocation", "segments": "segment"}
    test_counters(pinned, recorder)


def test_peak_and_retained_of_a_window(pinned: Pinned, recorder: HostRecorder) -> None:
    tracker = Tracker([recorder])
    pinned.pin(1)
    span = tracker.open("load")
    pinned.pin(4)
    pinned.pin(-2)
    (window,) = tracker.close(span)
    assert (window.device, window.peak_growth, window.retained, window.blocks) == (
        Device("host"),
        4 * PAGE,
        2 * PAGE,
        0,
    )
    assert (window.requested_peak, window.segments, window.retries) == (None, None, None)


def test_zeros_without_a_call_before_cuda_is_initialised(pinned: Pinned, recorder: HostRecorder) -> None:
    pinned.initialized = False
    assert recorder.read_and_reset_peaks() == ZERO
    assert pinned.reads == 0


def test_a_reset_of_the_tests_takes_no_peak_from_us(pinned: Pinned, recorder: HostRecorder) -> None:
    pinned.pin(4)
    pinned.pin(-4)
    getattr(pinned.bindings, PEAK_RESET)()
    pinned.pin(1)
    assert getattr(pinned.bindings, READER)()["active_bytes"]["peak"] == PAGE
    assert recorder.read_and_reset_peaks().allocated_peak == 4 * PAGE
    assert recorder.read_and_reset_peaks().allocated_peak == PAGE


def test_the_test_sees_no_reset_of_ours(pinned: Pinned, recorder: HostRecorder) -> None:
    pinned.pin(4)
    pinned.pin(-4)
    recorder.read_and_reset_peaks()
    pinned.pin(1)
    found = getattr(pinned.bindings, READER)()
    assert (found["active_bytes"]["peak"], found["active_requests"]["peak"]) == (4 * PAGE, 1)
    getattr(pinned.bindings, PEAK_RESET)()
    assert getattr(pinned.bindings, READER)()["active_bytes"]["peak"] == PAGE


def test_a_reset_before_cuda_starts_is_left_to_torch(pinned: Pinned, recorder: HostRecorder) -> None:
    pinned.initialized = False
    getattr(pinned.bindings, PEAK_RESET)()
    assert pinned.reads == 0


def watch(is_still: Callable[[], int], told: Callable[[], None] = lambda: None) -> HostWatch:
    """A watch over pinned memory with a source."""
    return HostWatch(is_still, told, "a source")


@given(st.lists(st.tuples(st.sampled_from(["pin", "free", "reset", "look", "boundary"]), st.booleans())))
def test_numbers_are_the_same_with_change_detection(program: list[tuple[str, bool]]) -> None:
    """With a watch, that may say less than it knows, and without one."""
    told: list[list[Any]] = []
    reads = []
    for watched in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            pinned = Pinned()
            patch.setattr(torch_api, "bindings", lambda pinned=pinned: pinned.bindings)
            patch.setattr(torch_api, "cuda_initialized", lambda: True)
            seen: list[Any] = [None]

            def is_still(seen: list[Any] = seen, pinned: Pinned = pinned) -> int:
                before, seen[0] = seen[0], str(pinned.stats)
                return int(before == seen[0])

            recorder = HostRecorder(watch(is_still) if watched else None)
            found: list[Any] = []
            live = 0
            for step, odd in program:
                if step == "pin":
                    pinned.pin(1 + odd)
                    live += 1 + odd
                elif step == "free" and live:
                    pinned.pin(-live)
                    live = 0
                elif step == "reset":
                    getattr(pinned.bindings, PEAK_RESET)()
                elif step == "look":
                    found.append(getattr(pinned.bindings, READER)())
                else:
                    found.append(recorder.read_and_reset_peaks())
            recorder.close()
            told.append(found)
            reads.append(pinned.reads)
    assert told[0] == told[1]
    assert reads[1] <= reads[0]


def test_what_is_still_is_not_read(pinned: Pinned) -> None:
    still = [0, 1, 1]
    recorder = HostRecorder(watch(lambda: still.pop(0)))
    first = recorder.read_and_reset_peaks()
    reads = pinned.reads
    assert recorder.read_and_reset_peaks() is first
    assert recorder.read_and_reset_peaks() is first
    assert pinned.reads == reads
    recorder.close()


def test_a_peak_that_the_test_reset_is_read_when_all_is_still(pinned: Pinned) -> None:
    """The test may have reset the number of requests, too."""
    recorder = HostRecorder(watch(lambda: 1))
    assert [recorder.read_and_reset_peaks().allocated_peak for _ in range(2)] == [0, 0]
    pinned.pin(4)
    pinned.pin(-4)
    getattr(pinned.bindings, PEAK_RESET)()
    assert [recorder.read_and_reset_peaks().allocated_peak for _ in range(2)] == [4 * PAGE, 0]
    recorder.close()


def test_it_cannot_be_limited(recorder: HostRecorder) -> None:
    with pytest.raises(RuntimeError, match=r"^pinned host memory cannot be limited$"):
        recorder.limit(1)


def test_closing_restores_torchs_functions(pinned: Pinned) -> None:
    before = dict(vars(pinned.bindings))
    recorder = HostRecorder()
    assert all(vars(pinned.bindings)[name] is not before[name] for name in (READER, PEAK_RESET))
    recorder.close()
    assert vars(pinned.bindings) == before


def test_it_is_measured_where_torch_gives_statistics(pinned: Pinned) -> None:
    assert host.measurable()
    delattr(pinned.bindings, PEAK_RESET)
    assert not host.measurable()


def test_when_native_code_reads(pinned: Pinned) -> None:
    pinned.initialized = False
    told: list[bool] = []
    recorder = HostRecorder(watch(lambda: 1, lambda: told.append(True)))
    found = [recorder.source]
    recorder.read_and_reset_peaks()
    pinned.initialized = True
    found.append(recorder.source)
    recorder.read_and_reset_peaks()
    found.append(recorder.source)
    getattr(pinned.bindings, PEAK_RESET)()
    found.append(recorder.source)
    recorder.read_and_reset_peaks()
    found.append(recorder.source)
    recorder.close()
    assert found == [None, None, "a source", None, "a source"]
    assert told == [True]


def test_without_native_code_there_is_no_source(recorder: HostRecorder) -> None:
    recorder.read_and_reset_peaks()
    assert recorder.source is None
