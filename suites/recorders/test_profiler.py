"""The recorder for machines without a compiler: what it sees, that it gives way, that nothing stays behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import profiler, profiler_legacy

from cudamem_testing.model.counters import Counters
from cudamem_testing.recorders.profiler import PARTLY, TAKEN, ProfilerRecorder
from cudamem_testing.windows.tracker import Tracker
from suites.recorders.workload import profiled, step

NAMES = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
OLDER = ("_enable_profiler_legacy", "_disable_profiler_legacy")


@pytest.fixture
def recorder() -> Iterator[ProfilerRecorder]:
    recorder = ProfilerRecorder()
    yield recorder
    recorder.close()
    assert not torch.autograd._profiler_enabled()


def functions() -> list[object]:
    return [getattr(profiler, name) for name in NAMES] + [getattr(profiler_legacy, name) for name in OLDER]


def take(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def test_asleep_it_reads_and_runs_nothing(recorder: ProfilerRecorder) -> None:
    assert recorder.read_and_reset_peaks() is None
    recorder.wake(limited=False)
    assert not torch.autograd._profiler_enabled()
    assert recorder.read_and_reset_peaks() is None


def test_windows(recorder: ProfilerRecorder) -> None:
    recorder.wake(limited=True)
    tracker = Tracker([recorder])
    outer = tracker.open("outer")
    kept = take(1000)
    inner = tracker.open("inner")
    temporary = take(5000)
    del temporary
    (found,) = tracker.close(inner)
    (whole,) = tracker.close(outer)
    assert (found.peak_growth, found.retained, found.allocations) == (5000, 0, 1)
    assert (whole.peak_growth, whole.retained, whole.allocations) == (6000, 1000, 2)
    assert (whole.reserved_peak, whole.retries, whole.complete, whole.notes) == (None, None, False, (PARTLY,))
    del kept


def test_backward_is_seen_and_other_threads_are_not(recorder: ProfilerRecorder) -> None:
    weight = torch.ones(1000, requires_grad=True)
    recorder.wake(limited=True)
    (weight * 2).sum().backward()
    found = recorder.read_and_reset_peaks()
    assert found is not None
    assert found.allocated == weight.nbytes
    thread = threading.Thread(target=take, args=(1 << 20,))
    thread.start()
    thread.join()
    again = recorder.read_and_reset_peaks()
    assert again is not None
    assert again.allocated_peak == found.allocated


def test_each_test_starts_from_zero(recorder: ProfilerRecorder) -> None:
    recorder.wake(limited=True)
    kept = take(1000)
    recorder.wake(limited=True)
    assert recorder.read_and_reset_peaks() == Counters(
        allocated=0, allocated_peak=0, requested=0, requested_peak=0, allocations=0
    )
    recorder.sleep()
    assert not torch.autograd._profiler_enabled()
    assert recorder.read_and_reset_peaks() is None
    del kept


@pytest.mark.parametrize("rounds", [1, 2])
def test_ours_stops_for_the_tests_own_profiler(rounds: int) -> None:
    step()
    alone = profiled()
    recorder = ProfilerRecorder()
    try:
        recorder.wake(limited=True)
        tracker = Tracker([recorder])
        span = tracker.open("span")
        kept = take(3000)
        assert recorder.incomplete == PARTLY
        for _ in range(rounds):
            assert profiled() == alone
        assert recorder.incomplete == TAKEN
        assert not torch.autograd._profiler_enabled()
        unseen = take(9000)
        (window,) = tracker.close(span)
        assert (window.start, window.peak_growth, window.retained) == (0, None, None)
        assert (window.complete, window.notes) == (False, (TAKEN,))
        recorder.wake(limited=True)
        assert recorder.incomplete == PARTLY  # the next test is measured again
        del kept, unseen
    finally:
        recorder.close()
    assert profiled() == alone


def test_a_profiler_that_runs_around_the_test_is_left_alone(recorder: ProfilerRecorder) -> None:
    with profiler.profile(profile_memory=True) as around:
        recorder.wake(limited=True)
        kept = take(1000)
        assert recorder.read_and_reset_peaks() == Counters()
        assert recorder.incomplete == TAKEN
        assert torch.autograd._profiler_enabled()
    assert [event.self_cpu_memory_usage for event in around.function_events or ()] == [1000]
    del kept


@pytest.mark.filterwarnings("ignore:.torch.autograd.profiler_legacy.profile. is deprecated")
@pytest.mark.parametrize("use", [profiler.profile, profiler_legacy.profile])
def test_other_ways_to_profile_make_it_give_way_too(recorder: ProfilerRecorder, use: Callable[..., Any]) -> None:
    recorder.wake(limited=True)
    with use(profile_memory=True) as theirs:
        kept = take(10)
    assert [event.self_cpu_memory_usage for event in theirs.function_events] == [10]
    assert recorder.incomplete == TAKEN
    assert not torch.autograd._profiler_enabled()
    del kept


def test_a_session_inside_a_session(recorder: ProfilerRecorder) -> None:
    recorder.wake(limited=True)
    inner = ProfilerRecorder()
    inner.wake(limited=True)
    kept = take(700)
    found = inner.read_and_reset_peaks()
    inner.close()
    assert found is not None
    assert found.allocated == 700
    assert recorder.incomplete == TAKEN
    del kept


def test_nothing_is_written_and_nothing_stays(capfd: pytest.CaptureFixture[str]) -> None:
    before = functions()
    recorder = ProfilerRecorder()
    recorder.wake(limited=True)
    for _ in range(3):
        take(100)
        recorder.read_and_reset_peaks()
    recorder.close()
    recorder.close()
    assert functions() == before
    assert not torch.autograd._profiler_enabled()
    assert capfd.readouterr() == ("", "")


def test_a_hard_limit_is_refused(recorder: ProfilerRecorder) -> None:
    with pytest.raises(RuntimeError, match=r"^a hard limit on cpu needs the CPU recorder: install a C\+\+ compiler$"):
        recorder.limit(1)
    assert recorder.capture() is None


def test_a_torch_without_the_profiler_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudamem_testing.recorders.profiler.profiler_modules", lambda: None)
    recorder = ProfilerRecorder()
    recorder.wake(limited=True)
    assert recorder.read_and_reset_peaks() is None
    recorder.close()
