"""Windows on the CPU recorder: exact against a ledger, also under threads; a user's profiler sees no difference."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.windows import Window
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.recorders.cpu import DISPLACED, EVENTS, CpuRecorder
from cudamem_testing.recorders.native import NativeRecorder
from cudamem_testing.recorders.native_records import ALLOCATED, FREED
from cudamem_testing.windows.tracker import Span, Tracker
from suites.plugin.inner import run_inner
from suites.recorders.in_place import in_place
from suites.recorders.workload import profiled, step

WORKERS = 3


@pytest.fixture
def recorder() -> Iterator[CpuRecorder]:
    with in_place():
        recorder = CpuRecorder().start()
        yield recorder
        recorder.close()


def take(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def test_what_is_and_is_not_known(recorder: CpuRecorder) -> None:
    recorder.read_and_reset_peaks()
    kept = take(1000)
    found = recorder.read_and_reset_peaks()
    assert (found.reserved, found.reserved_peak, found.active, found.segments) == (None, None, None, None)
    assert (found.retries, found.notes, recorder.incomplete, str(recorder.device)) == (0, (), None, "cpu")
    assert found.allocated == found.requested == found.allocated_peak == found.requested_peak
    assert found.allocated is not None
    assert found.allocated >= 1000
    del kept


def test_frees_of_others_do_not_lower_what_was_requested(recorder: CpuRecorder) -> None:
    others, back = recorder.own_new()
    garbage = [take(5000)]
    assert recorder.own_new() == (others + 1, others)
    recorder.wake(limited=False)
    start = recorder.read_and_reset_peaks()
    assert start.requested == start.allocated
    kept = [take(1000)]
    garbage.clear()
    kept.append(take(3000))
    kept.pop(0)
    end = recorder.read_and_reset_peaks()
    assert [end.allocated - start.allocated, end.allocated_peak - start.allocated] == [-2000, 1000]
    assert [end.requested - start.requested, end.requested_peak - start.requested] == [3000, 4000]
    recorder.wake(limited=False)
    again = recorder.read_and_reset_peaks()
    assert again.requested == again.allocated == end.allocated
    recorder.own(back)
    kept.clear()


def test_no_collection_runs_within_a_capture() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me, self.memory = self, take(5000)

    threshold = gc.get_threshold()
    with in_place():
        recorder = CpuRecorder(record=True).start()
        begin(recorder)
        mine, _ = recorder.own_new()
        kept = [take(1) for _ in range(500)]
        gc.disable()
        Cycle()
        gc.set_threshold(100, *threshold[1:])
        gc.enable()
        capture = recorder.capture()
        gc.set_threshold(*threshold)
        recorder.close()
    made = {event.pointer for event in capture.events if event.kind == ALLOCATED}
    freed = {event.pointer for event in capture.events if event.kind == FREED}
    assert made - freed == {block.pointer for block in capture.blocks if block.owner == mine}
    del kept


@pytest.mark.parametrize("record", [True, False])
def test_frees_of_other_threads_since_a_moment_are_reported(*, record: bool) -> None:
    with in_place():
        recorder = CpuRecorder(record=record).start()
        recorder.wake(limited=False)
        before, mine, theirs, live = ([take(1000)] for _ in range(4))
        orders = {block.pointer: block.sequence for block in NativeRecorder.load().scan()}
        order = orders[theirs[0].data_ptr()]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(before.clear).result()
            moment = recorder.moment()
            pool.submit(theirs.clear).result()
        mine.clear()
        assert recorder.freed_elsewhere(moment) == ({order} if record else set())
        assert recorder.freed_elsewhere(recorder.moment()) == set()
        assert len(live) == 1
        recorder.close()


def test_unchanged_counters_are_the_same_object(recorder: CpuRecorder) -> None:
    recorder.wake(limited=False)
    recorder.read_and_reset_peaks()
    still = recorder.read_and_reset_peaks()
    assert recorder.read_and_reset_peaks() is still
    kept = torch.empty(1000, dtype=torch.uint8)
    grown = recorder.read_and_reset_peaks()
    assert (grown.allocated, grown.blocks) == ((still.allocated or 0) + 1000, (still.blocks or 0) + 1)
    torch.empty(500, dtype=torch.uint8)
    passing = recorder.read_and_reset_peaks()  # its levels are those of before, its peak is not
    assert (passing.allocated, passing.allocated_peak) == (grown.allocated, (grown.allocated or 0) + 500)
    settled = recorder.read_and_reset_peaks()
    assert settled.allocated_peak == settled.allocated == grown.allocated
    assert recorder.read_and_reset_peaks() is settled
    del kept
    recorder.wake(limited=False)
    assert recorder.read_and_reset_peaks().allocated == still.allocated


def test_without_a_record_blocks_are_known_but_not_their_lines(recorder: CpuRecorder) -> None:
    recorder.wake(limited=True)
    kept = take(10)
    capture = recorder.capture()
    recorder.sleep()
    stack_ids = [block[3] for block in capture.blocks if block[0] == kept.data_ptr() and block[1] == 10]
    assert stack_ids == [0]
    assert capture.events == ()
    assert capture.missing == "no stacks and no events: none were recorded"


@pytest.mark.parametrize("awake", [False, True])
def test_a_recorder_within_another_leaves_it_its_events(recorder: CpuRecorder, *, awake: bool) -> None:
    native = NativeRecorder.load()
    outer = CpuRecorder(record=True).start()
    capacity = native.events_capacity()
    if awake:
        begin(outer)
    inner = CpuRecorder(record=True).start()
    begin(inner)
    kept = [take(20)]
    assert sizes(inner) == [20]
    inner.sleep()
    inner.close()
    if not awake:
        begin(outer)
    kept.append(take(30))
    assert sizes(outer) == ([20, 30] if awake else [30])
    assert not outer.capture().truncated
    outer.close()
    assert (capacity, native.events_capacity()) == (EVENTS, 0)


def test_recording_is_on_again_for_the_next_test(recorder: CpuRecorder) -> None:
    recorder = CpuRecorder(record=True).start()
    begin(recorder)
    NativeRecorder.load().set_recording(stacks=False, events=False)
    unrecorded = take(20)
    recorder.read_and_reset_peaks()
    assert sizes(recorder) == []
    begin(recorder)
    kept = take(30)
    assert sizes(recorder) == [30]
    stacks = {block.size: len(recorder.frames(block.stack)) for block in recorder.capture().blocks}
    assert (stacks[unrecorded.nbytes], stacks[kept.nbytes] > 0) == (0, True)
    recorder.close()


def begin(recorder: CpuRecorder) -> None:
    """As a test does."""
    recorder.wake(limited=True)
    recorder.read_and_reset_peaks()


def sizes(recorder: CpuRecorder) -> list[int]:
    """Of what was allocated since the recorder woke."""
    return [event[1] for event in recorder.capture().events if event[7] == ALLOCATED]


WITHIN = """
    import pytest, torch

    def test_plain(pytester):
        pytester.makepyfile(test_inner="import torch\\ndef test_inner(): torch.zeros(9)")
        pytester.runpytest_inprocess("-p", "cudamem", "--cudamem").assert_outcomes(passed=1)

    @pytest.mark.memory_budget(peak="1KiB")
    def test_over():
        torch.empty(768)
"""


def test_an_unmeasured_nested_run_keeps_the_outer_events(pytester: pytest.Pytester) -> None:
    inner = run_inner(pytester, WITHIN, plugins=["pytester"])
    assert inner.last == "1 failed, 1 passed"
    lines = [" ".join(line.split()) for line in inner.section("test_over")]
    assert lines[lines.index("3.0 KiB 1 block test_it.py:9 in test_over") + 1] == "| torch.empty(768)"


def test_leaving_restores_torchs_allocator() -> None:
    first, second = CpuRecorder().start(), CpuRecorder().start()
    second.close()
    first.read_and_reset_peaks()
    kept = take(10)
    assert first.read_and_reset_peaks().allocated_peak is not None
    first.close()
    again = CpuRecorder().start()
    assert again.read_and_reset_peaks().allocations is not None
    again.close()
    del kept
    with pytest.raises(ValueError, match="released"):
        first.read_and_reset_peaks()


def test_a_replaced_recorder_says_so_until_installed_again(
    recorder: CpuRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker([recorder])
    recorder.wake(limited=True)
    outer, before = tracker.open("outer"), tracker.open("before")
    (seen,) = tracker.close(before)
    inner = tracker.open("inner")
    NativeRecorder.load().uninstall()
    kept = take(1000)
    (missed,) = tracker.close(inner)
    (around,) = tracker.close(outer)
    assert (seen.complete, missed.complete, around.complete) == (True, False, False)
    assert missed.notes == around.notes == (DISPLACED,)
    reason = "another CPU allocator was registered over the recorder"
    with monkeypatch.context() as patch:
        patch.setattr(NativeRecorder, "install", raising(RecorderUnavailable(reason)))
        recorder.wake(limited=True)
        (window,) = tracker.close(tracker.open("while another is there"))
        NativeRecorder.load().uninstall()
        with pytest.raises(RuntimeError) as caught:
            recorder.limit(1)
    assert str(caught.value) == f"a hard limit on cpu cannot hold: no longer seen by the recorder: {reason}"
    assert (window.complete, window.notes) == (False, (f"no longer seen by the recorder: {reason}",))
    lift = recorder.limit(100)  # takes the place back by itself
    with pytest.raises(torch.OutOfMemoryError):
        take(101)
    lift()
    recorder.wake(limited=True)
    span = tracker.open("next")
    del kept  # it was never counted
    new = take(100)
    (window,) = tracker.close(span)
    assert (window.complete, window.retained, window.notes) == (True, new.nbytes, ())


def raising(error: Exception) -> Callable[[object], None]:
    def function(self: object) -> None:
        raise error

    return function


# -- against a ledger -------------------------------------------------------------------------------------


class Ledger:
    """Every level since the beginning; ``marks`` are the places in it where spans began."""

    def __init__(self) -> None:
        self.levels = [0]
        self.blocks = self.made = 0

    def change(self, by: int) -> None:
        self.levels.append(self.levels[-1] + by)
        self.made += by > 0
        self.blocks += 1 if by > 0 else -1


def numbers(window: Window) -> tuple[int | None, ...]:
    return window.peak_growth, window.retained, window.allocations, window.blocks


STEP = st.one_of(
    st.tuples(st.just("allocate"), st.integers(0, WORKERS - 1), st.integers(1, 100_000)),
    st.tuples(st.just("allocate"), st.integers(0, WORKERS - 1), st.integers(1, 100_000)),
    st.tuples(st.just("free"), st.integers(0, WORKERS - 1), st.integers(0, 2)),
    st.tuples(st.just("open"), st.just(0), st.just(0)),
    st.tuples(st.just("close"), st.just(0), st.integers(0, 3)),
)


@given(st.lists(STEP, min_size=15, max_size=40))
def test_windows_agree_with_a_ledger_whichever_thread_allocates(program: list[tuple[str, int, int]]) -> None:
    pools = [ThreadPoolExecutor(1) for _ in range(WORKERS)]
    recorder = CpuRecorder().start()
    tracker = Tracker([recorder])
    ledger = Ledger()
    kept: list[torch.Tensor] = []
    spans: list[tuple[Span, int, int, int]] = []
    gc.collect(0)
    gc.disable()  # no garbage of other tests may be freed inside
    try:
        for action, worker, value in program:
            if action == "allocate":
                kept.append(pools[worker].submit(take, value).result())
                ledger.change(value)
            elif action == "free" and value < len(kept):
                ledger.change(-kept[value].nbytes)
                pools[worker].submit(kept.__delitem__, value).result()
            elif action == "open":
                place = len(ledger.levels) - 1
                spans.append((tracker.open("span"), place, ledger.made, ledger.blocks))
            elif action == "close" and value < len(spans):
                span, place, made, blocks = spans.pop(value)
                levels = ledger.levels[place:]
                assert numbers(tracker.close(span)[0]) == (
                    max(levels) - levels[0],
                    levels[-1] - levels[0],
                    ledger.made - made,
                    ledger.blocks - blocks,
                )
    finally:
        gc.enable()
        recorder.close()
        for pool in pools:
            pool.shutdown()


def body(sizes: list[int]) -> tuple[list[torch.Tensor], int]:
    """Allocate all, free every second one at once; what is kept, and the thread's own peak."""
    kept, level, peak = [], 0, 0
    for place, size in enumerate(sizes):
        block = take(size)
        level += size
        peak = max(peak, level)
        if place % 2:
            level -= size
            del block
        else:
            kept.append(block)
    return kept, peak


@given(st.lists(st.lists(st.integers(1, 50_000), max_size=60), min_size=WORKERS, max_size=WORKERS))
def test_windows_lose_nothing_when_threads_run_freely(programs: list[list[int]]) -> None:
    recorder = CpuRecorder().start()
    tracker = Tracker([recorder])
    gc.collect(0)
    gc.disable()
    try:
        span = tracker.open("span")
        with ThreadPoolExecutor(WORKERS) as pool:
            running = [pool.submit(body, sizes) for sizes in programs]
            while not all(one.done() for one in running):
                tracker.peek(span)  # boundaries in the middle of it all
            results = [one.result() for one in running]
        (window,) = tracker.close(span)
        left = sum(block.nbytes for kept, _ in results for block in kept)
        assert (window.retained, window.allocations) == (left, sum(map(len, programs)))
        assert window.blocks == sum(len(kept) for kept, _ in results)
        assert window.peak_growth is not None
        peaks = [peak for _, peak in results]
        assert max(left, *peaks) <= window.peak_growth <= sum(peaks)
    finally:
        gc.enable()
        recorder.close()


# -- beside a user's profiler -----------------------------------------------------------------------------


def test_the_users_own_profiler_sees_the_same_with_the_recorder(recorder: CpuRecorder) -> None:
    recorder.close()
    step()
    before = profiled()
    around = CpuRecorder(record=True).start()
    around.wake(limited=True)
    tracker = Tracker([around])
    span = tracker.open("span")
    inside = profiled()
    (window,) = tracker.close(span)
    around.sleep()
    around.close()
    assert inside == before
    assert len(before) > 50
    assert any(memory for _, memory, _ in before)
    assert window.complete
    assert (window.peak_growth or 0) > 0


def test_measuring_writes_nothing(recorder: CpuRecorder, capfd: pytest.CaptureFixture[str]) -> None:
    recorder.wake(limited=True)
    recorder.read_and_reset_peaks()
    step()
    recorder.read_and_reset_peaks()
    recorder.sleep()
    assert capfd.readouterr() == ("", "")
