"""Nested spans against a reference that remembers every moment, on an allocator with one set of peaks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.windows import Window
from cudamem_testing.recorders.cuda import CudaRecorder, CudaStatistics
from cudamem_testing.windows.spans import LATE, Span
from cudamem_testing.windows.tracker import Tracker
from suites.recorders.allocator import SEGMENT, Allocator
from suites.windows.fake import FakeRecorder

CPU = Device("cpu")


@pytest.fixture
def recorder() -> FakeRecorder:
    return FakeRecorder()


def levels(window: Window) -> tuple[int | None, ...]:
    return window.start, window.peak, window.end, window.retained


def test_a_span(recorder: FakeRecorder) -> None:
    tracker = Tracker([recorder])
    recorder.allocate(10)
    span = tracker.open("decode")
    recorder.allocate(90)
    recorder.allocate(-60)
    (window,) = tracker.close(span)
    assert window == Window(
        "decode",
        CPU,
        start=10,
        peak=100,
        end=40,
        requested_start=10,
        requested_peak=100,
        reserved_start=10,
        reserved_peak=100,
        retained=30,
        allocations=1,
        segments=0,
        retries=0,
        blocks=0,
    )


def test_memory_from_before_that_is_freed_inside_is_negative(recorder: FakeRecorder) -> None:
    tracker = Tracker([recorder])
    recorder.allocate(100)
    span = tracker.open("free")
    recorder.allocate(-70)
    (window,) = tracker.close(span)
    assert levels(window) == (100, 100, 30, -70)
    assert (window.peak_growth, window.blocks) == (0, -1)


def test_a_child_takes_no_peak_from_its_parent(recorder: FakeRecorder) -> None:
    tracker = Tracker([recorder])
    parent = tracker.open("parent")
    recorder.allocate(50)
    recorder.allocate(-50)
    child = tracker.open("child")
    recorder.allocate(20)
    recorder.allocate(-20)
    (inner,) = tracker.close(child)
    recorder.allocate(5)
    (outer,) = tracker.close(parent)
    assert (inner.peak, outer.peak, outer.end) == (20, 50, 5)


def test_switch_ends_and_begins_at_one_moment(recorder: FakeRecorder) -> None:
    tracker = Tracker([recorder])
    first = tracker.open("first")
    recorder.allocate(7)
    (window,) = tracker.continued(first, "second", tracker.boundary())
    recorder.allocate(1)
    assert levels(window) == (0, 7, 7, 7)
    assert levels(tracker.close(first)[0]) == (7, 8, 8, 1)


def test_a_peak_read_by_another_thread_is_folded_first() -> None:
    has_read, go_on = threading.Event(), threading.Event()

    class Slow(FakeRecorder):
        slow = False

        def read_and_reset_peaks(self) -> Counters | None:
            counters = super().read_and_reset_peaks()
            if self.slow:
                self.slow = False
                has_read.set()
                go_on.wait(10)
            return counters

    recorder = Slow()
    tracker = Tracker([recorder])
    span = tracker.open("decode")
    recorder.allocate(100, -100)
    recorder.slow = True
    found: list[Window] = []
    reader = threading.Thread(target=tracker.open, args=("of another thread",))
    closer = threading.Thread(target=lambda: found.extend(tracker.close(span)))
    reader.start()
    assert has_read.wait(10)
    closer.start()
    closer.join(0.05)
    go_on.set()
    reader.join()
    closer.join()
    assert [levels(window) for window in found] == [(0, 100, 0, 0)]


def test_a_finalizer_may_end_a_span_while_another_one_begins(recorder: FakeRecorder) -> None:
    tracker = Tracker([recorder])
    dropped, outer, inner = [tracker.open(name) for name in ("dropped", "outer", "inner")]
    garbage = [dropped]

    class Collecting(Counters):
        """Frees something that holds an open span while its numbers are taken."""

        @property
        def allocated_peak(self) -> int | None:  # type: ignore[override]
            if garbage:
                tracker.close(garbage.pop())
            return self[1]

    recorder.allocate(100, -100)
    read = recorder.read_and_reset_peaks
    recorder.read_and_reset_peaks = lambda: Collecting(*(read() or ()))  # type: ignore[method-assign]
    tracker.open("new")
    assert [levels(window) for span in (inner, outer) for window in tracker.close(span)] == [(0, 100, 0, 0)] * 2


def test_peek_and_read_leave_spans_open_and_whole(recorder: FakeRecorder) -> None:
    tracker = Tracker([recorder])
    span = tracker.open("span")
    recorder.allocate(40)
    recorder.allocate(-30)
    assert levels(tracker.peek(span)[0]) == (0, 40, 10, 10)
    assert tracker.read(recorder).allocated == 10
    recorder.allocate(1)
    assert levels(tracker.peek(span)[0]) == (0, 40, 11, 11)
    assert levels(tracker.close(span)[0]) == (0, 40, 11, 11)


def test_what_a_wider_fixture_takes_is_the_fixtures(recorder: FakeRecorder) -> None:
    tracker = Tracker([recorder])
    test = tracker.open("test")
    recorder.allocate(10)
    fixture = tracker.open("setup of fixture 'model'", exclusive=True)
    recorder.allocate(2**20)
    recorder.allocate(2**20)
    recorder.allocate(-(2**20))
    (taken,) = tracker.close(fixture)
    recorder.allocate(5)
    (window,) = tracker.close(test)
    assert levels(taken) == (10, 10 + 2**21, 10 + 2**20, 2**20)
    assert (taken.allocations, taken.blocks) == (2, 1)
    assert levels(window) == (2**20, 2**20 + 15, 2**20 + 15, 15)
    assert (window.allocations, window.blocks) == (2, 2)
    assert window.notes == ("setup of fixture 'model' changed cpu by 1.0 MiB, not counted here",)
    assert window.opened is not None
    assert window.opened.allocated == 0  # what was read when it began is not moved


def test_peaks_from_before_a_fixture_move_with_the_levels(recorder: FakeRecorder) -> None:
    tracker = Tracker([recorder])
    test = tracker.open("test")
    recorder.allocate(100, -100)
    fixture = tracker.open("fixture", exclusive=True)
    recorder.allocate(7)
    tracker.close(fixture)
    (window,) = tracker.close(test)
    assert (window.start, window.requested_start, window.reserved_start) == (7, 7, 7)
    assert (window.peak, window.requested_peak, window.reserved_peak) == (107, 107, 107)


def test_a_fixture_that_changes_nothing_leaves_no_note(recorder: FakeRecorder) -> None:
    tracker = Tracker([recorder])
    test = tracker.open("test")
    fixture = tracker.open("fixture", exclusive=True)
    recorder.allocate(5)
    recorder.allocate(-5)
    tracker.close(fixture)
    (window,) = tracker.close(test)
    assert (levels(window), window.notes) == ((0, 0, 0, 0), ())


def test_a_fixture_inside_a_fixture(recorder: FakeRecorder) -> None:
    tracker = Tracker([recorder])
    test = tracker.open("test")
    outer = tracker.open("outer", exclusive=True)
    recorder.allocate(100)
    inner = tracker.open("inner", exclusive=True)
    recorder.allocate(1000)
    assert tracker.close(inner)[0].retained == 1000
    recorder.allocate(10)
    (window,) = tracker.close(outer)
    assert (window.retained, window.peak_growth) == (110, 110)
    recorder.allocate(1)
    assert levels(tracker.close(test)[0]) == (1110, 1111, 1111, 1)


def test_unknown_counters_stay_unknown() -> None:
    recorder = FakeRecorder(unknown=("requested", "requested_peak", "allocations"), notes=("counts little",))
    tracker = Tracker([recorder])
    span = tracker.open("span")
    fixture = tracker.open("fixture", exclusive=True)
    recorder.allocate(3)
    tracker.close(fixture)
    (window,) = tracker.close(span)
    assert levels(window) == (3, 3, 3, 0)
    assert (window.requested_start, window.requested_peak, window.allocations) == (None, None, None)
    assert window.notes == ("counts little", "fixture changed cpu by 3 B, not counted here")


@pytest.mark.parametrize("at", ["start", "end"])
def test_an_unknown_counter_gives_no_difference(recorder: FakeRecorder, at: str) -> None:
    counters = ("allocated", "allocations", "segments", "retries", "blocks")
    tracker = Tracker([recorder])
    recorder._unknown = dict.fromkeys(counters) if at == "start" else {}
    span = tracker.open("span")
    recorder._unknown = dict.fromkeys(counters) if at == "end" else {}
    (window,) = tracker.close(span)
    assert (window.retained, window.allocations, window.segments, window.retries, window.blocks) == (None,) * 5


def test_what_only_grows_counts_from_the_start(recorder: FakeRecorder) -> None:
    tracker = Tracker([recorder])
    recorder._unknown = {"segments": 5, "retries": 3}  # type: ignore[dict-item]
    span = tracker.open("span")
    recorder._unknown = {"segments": 9, "retries": 4}  # type: ignore[dict-item]
    (window,) = tracker.close(span)
    assert (window.segments, window.retries) == (4, 1)


def test_a_recorder_that_misses_something_says_why(recorder: FakeRecorder) -> None:
    recorder.incomplete = "other threads are not seen"
    tracker = Tracker([recorder])
    (window,) = tracker.close(tracker.open("span"))
    assert (window.complete, window.notes) == (False, ("other threads are not seen",))


def test_a_device_that_came_late_has_no_numbers(recorder: FakeRecorder) -> None:
    tracker = Tracker()
    span = tracker.open("span")
    assert tracker.recorders == ()
    tracker.attach([recorder])
    recorder.allocate(3)
    assert tracker.close(span) == (Window("span", CPU, complete=False, notes=(LATE,)),)
    assert levels(tracker.close(tracker.open("next"))[0]) == (3, 3, 3, 0)


def test_a_recorder_that_sleeps_has_no_window(recorder: FakeRecorder) -> None:
    recorder.asleep = True
    recorder.incomplete = "not requested"
    other = FakeRecorder("cuda:0")
    tracker = Tracker([recorder, other])
    span = tracker.open("span")
    assert [window.device for window in tracker.close(span)] == [Device("cuda", 0)]
    with pytest.raises(RuntimeError, match=r"^cpu is not measured now: not requested$"):
        tracker.read(recorder)


def test_devices_are_apart() -> None:
    cpu, card = FakeRecorder("cpu"), FakeRecorder("cuda:1")
    tracker = Tracker([card, cpu])
    span = tracker.open("span")
    card.allocate(2)
    cpu.allocate(1)
    windows = tracker.close(span)
    assert [(str(window.device), window.retained) for window in windows] == [("cuda:1", 2), ("cpu", 1)]


def test_what_others_freed_is_left_out_of_one_device() -> None:
    """The memory that others had during the whole span counts neither at its start nor in its peak."""
    cpu, card = FakeRecorder("cpu"), FakeRecorder("cuda:1")
    tracker = Tracker([card, cpu])
    card.allocate(100, 20)
    cpu.allocate(7)
    span = tracker.open("test")
    card.allocate(50, -50)
    card.allocate(-20)
    tracker.exclude_freed(span, Device("cuda", 1), 20, 1, "a cycle of test_a")
    card.allocate(5)
    on_card, on_cpu = tracker.close(span)
    assert levels(on_card) == (100, 150, 105, 5)
    assert (on_card.blocks, on_card.notes) == (1, ("a cycle of test_a changed cuda:1 by -20 B, not counted here",))
    assert (levels(on_cpu), on_cpu.blocks) == ((7, 7, 7, 0), 0)


def test_recorders_are_chosen_by_device() -> None:
    cpu, card, host = FakeRecorder("cpu"), FakeRecorder("cuda:1"), FakeRecorder("host")
    tracker = Tracker([card, cpu, host])
    assert [tracker.recorder(one.device) for one in (cpu, card, host)] == [cpu, card, host]
    assert [tracker.chosen(one) for one in (None, "cuda", 1, "cpu", "host")] == [
        (card, cpu),
        (card,),
        (card,),
        (cpu,),
        (host,),
    ]
    with pytest.raises(ValueError, match=r"^cuda:0 is not measured \(measured: cuda:1, cpu, host\)$"):
        tracker.chosen(0)
    with pytest.raises(ValueError, match=r"^a device is not measured \(measured: host\)$"):
        Tracker([host]).chosen(None)


def test_an_empty_tracker_measures_nothing() -> None:
    tracker = Tracker()
    span = tracker.open("span")
    assert (tracker.peek(span), tracker.close(span)) == ((), ())


# -- against a reference ----------------------------------------------------------------------------------

FACTS = ("allocated_bytes", "requested_bytes", "reserved_bytes")
SIZES = st.sampled_from([1, 512, 1000, SEGMENT, 3 * SEGMENT])
STEP = st.one_of(
    st.tuples(st.just("allocate"), SIZES),
    st.tuples(st.just("allocate"), SIZES),
    st.tuples(st.just("free"), st.integers(0, 2)),
    st.tuples(st.just("free"), st.integers(0, 2)),
    st.tuples(st.just("empty cache"), st.just(0)),
    st.tuples(st.just("open"), st.just(0)),
    st.tuples(st.just("open"), st.just(0)),
    st.tuples(st.just("open exclusive"), st.just(0)),
    st.tuples(st.just("close"), st.integers(0, 5)),
    st.tuples(st.just("close"), st.integers(0, 5)),
    st.tuples(st.just("peek"), st.integers(0, 5)),
    st.tuples(st.just("switch"), st.integers(0, 5)),
    st.tuples(st.just("reset by the test"), st.just(0)),
)


@dataclass
class Life:
    """What a span has to say, from every moment of its life; ``apart`` is what fixtures took in it."""

    span: Span
    exclusive: bool
    start: tuple[int, ...]
    made: int
    highest: list[int]
    apart: list[int] = field(default_factory=lambda: [0, 0, 0])
    apart_made: int = 0
    inside: list[Life] = field(default_factory=list)  # exclusive ones that are open inside
    clean: bool = True  # no fixture so far
    children: list[int] = field(default_factory=list)

    def look(self, now: tuple[int, ...]) -> None:
        if not self.inside:
            own = [level - apart for level, apart in zip(now, self.apart, strict=True)]
            self.highest = [max(pair) for pair in zip(self.highest, own, strict=True)]


class Reference:
    """Remembers all lives; the outermost fixture inside a span holds what is taken from it."""

    def __init__(self) -> None:
        self.allocator = Allocator()
        self.made = 0
        self.lives: list[Life] = []

    def now(self) -> tuple[int, ...]:
        return tuple(self.allocator.cards[0].now(name) for name in FACTS)

    def look(self) -> None:
        for life in self.lives:
            life.look(self.now())

    def open(self, span: Span, exclusive: bool) -> None:
        life = Life(span, exclusive, self.now(), self.made, [*self.now()])
        if exclusive:
            for outer in self.lives:
                outer.inside.append(life)
                outer.clean = False
        self.lives.append(life)

    def close(self, life: Life) -> None:
        self.lives.remove(life)
        for outer in self.lives:
            if life in outer.inside:
                outermost = outer.inside[0] is life
                outer.inside.remove(life)
                if outermost:
                    changes = zip(outer.apart, self.now(), life.start, strict=True)
                    outer.apart = [apart + now - before for apart, now, before in changes]
                    outer.apart_made += self.made - life.made

    def check(self, life: Life, window: Window) -> None:
        now = self.now()
        starts = [level + apart for level, apart in zip(life.start, life.apart, strict=True)]
        peaks = [level + apart for level, apart in zip(life.highest, life.apart, strict=True)]
        assert [window.start, window.requested_start, window.reserved_start] == starts
        assert [window.peak, window.requested_peak, window.reserved_peak] == peaks
        assert (window.end, window.retained) == (now[0], now[0] - starts[0])
        assert window.allocations == self.made - life.made - life.apart_made
        assert peaks[0] >= max(starts[0], now[0])
        assert window.complete
        if life.clean:
            assert peaks[0] >= max(life.children, default=0)
            assert window.notes == ()


@example(
    [("open", 0), ("allocate", 1), ("open exclusive", 0), ("switch", 0), ("allocate", 1), ("close", 1), ("close", 0)]
)
@given(st.lists(STEP, min_size=25, max_size=50))
def test_nested_windows_are_what_a_reference_remembers(program: list[tuple[str, int]]) -> None:
    reference = Reference()
    card, lives = reference.allocator.cards[0], reference.lives
    with reference.allocator.in_place():
        statistics = CudaStatistics()
        tracker = Tracker([CudaRecorder(Device("cuda", 0), statistics)])
        for action, value in program:
            closable = [life for life in lives if not life.inside]
            life = closable[value % len(closable)] if closable else None
            if action == "allocate":
                card.allocate(value)
                reference.made += 1
            elif action == "free" and value < len(card.blocks):
                card.free(value)
            elif action == "empty cache":
                card.empty_cache()
            elif action.startswith("open"):
                exclusive = action == "open exclusive"
                reference.open(tracker.open(action, exclusive=exclusive), exclusive)
            elif action == "reset by the test":
                reference.allocator.bindings._cuda_resetPeakMemoryStats(0)
            elif action == "peek" and life is not None:
                reference.check(life, tracker.peek(life.span)[0])
            elif action in ("close", "switch") and life is not None:
                reference.look()
                if action == "switch":
                    (window,), span = tracker.continued(life.span, "next", tracker.boundary()), life.span
                else:
                    (window,), span = tracker.close(life.span), None
                reference.check(life, window)
                for parent in lives[: lives.index(life)]:
                    parent.children.append(window.peak or 0)
                reference.close(life)
                if span is not None:
                    reference.open(span, life.exclusive)
            reference.look()
        statistics.close()


def test_the_reference_tells_a_wrong_window(recorder: FakeRecorder) -> None:
    reference = Reference()
    life = Life(Span("x", False), False, (0, 0, 0), 0, [0, 0, 0])
    reference.check(life, Window("x", CPU, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    with pytest.raises(AssertionError):
        reference.check(life, Window("x", CPU, 0, 1, 0, 0, 0, 0, 0, 0, 0))


def test_counters_are_read_once_for_each_boundary() -> None:
    class Counting(FakeRecorder):
        reads = 0

        def read_and_reset_peaks(self) -> Counters | None:
            self.reads += 1
            return super().read_and_reset_peaks()

    recorder = Counting()
    tracker = Tracker([recorder])
    span = tracker.open("first")
    tracker.continued(span, "second", tracker.boundary())
    tracker.close(span)
    assert recorder.reads == 3
