"""The phases of a test: without spans, and with spans from any moment on, their windows are the same."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.windows import SharedWindows, Window
from cudamem_testing.windows.phases import Phases
from cudamem_testing.windows.spans import LATE
from cudamem_testing.windows.tracker import Tracker
from suites.windows.fake import FakeRecorder

CPU = Device("cpu")
NAMES = ("setup", "call", "teardown")


class Same(FakeRecorder):
    """Returns the same object while nothing changes, as recorders do."""

    last = Counters()

    def read_and_reset_peaks(self) -> Counters | None:
        now = super().read_and_reset_peaks()
        self.last = self.last if now == self.last else now or Counters()
        return self.last


def levels(window: Window) -> tuple[object, ...]:
    return window.name, window.start, window.peak, window.end, window.allocations


def test_windows_of_a_test() -> None:
    recorder, shared = Same(), SharedWindows()
    recorder.allocate(3)
    phases = Phases(Tracker([recorder]), "setup", shared)
    phases.next("call")
    recorder.allocate(50, -20)
    phases.next("teardown")
    assert [levels(window) for window in phases.ended] == [("call", 3, 53, 33, 1)]
    assert phases.growths() == [("cudamem.cpu.peak", 50), ("cudamem.cpu.reserved", 50)]
    recorder.allocate(-10)
    phases.end()
    assert phases.gained(fresh=False) == [(recorder, 20, -1)]
    windows, whole = phases.close(fresh=False)
    assert [levels(window) for window in (*windows, *whole)] == [
        ("setup", 3, 3, 3, 0),
        ("call", 3, 53, 33, 1),
        ("teardown", 33, 33, 23, 0),
        ("test", 3, 53, 23, 1),
    ]
    assert {window.opened for window in windows} == {None}


def test_equal_tests_have_the_same_windows() -> None:
    recorder, shared = Same(), SharedWindows()
    tracker = Tracker([recorder, FakeRecorder("cuda:0")])

    def run(*sizes: int) -> tuple[object, object]:
        phases = Phases(tracker, "setup", shared)
        phases.next("call")
        recorder.allocate(*sizes)
        phases.next("teardown")
        phases.end()
        return phases.close(fresh=False)

    first, again, others, third = run(5, -5), run(5, -5), (run(6, -6), run(5, -5, 5, -5)), run(5, -5)
    for place in range(2):
        assert first[place] is again[place] is third[place]
        assert [other[place] == first[place] for other in others] == [False, False]


def test_the_same_in_another_phase_is_another_window() -> None:
    shared, found = SharedWindows(), []
    for busy in NAMES:
        recorder = Same()
        phases = Phases(Tracker([recorder]), "setup", shared)
        for name, after in zip(NAMES, (*NAMES[1:], ""), strict=True):
            recorder.allocate(*([5] if name == busy else []))
            phases.next(after)
        found.append([window.end for window in phases.close(fresh=False)[0]])
    assert found == [[5, 5, 5], [0, 5, 5], [0, 0, 5]]


def test_a_peak_below_the_start_is_no_growth() -> None:
    recorder = FakeRecorder()
    recorder.allocate(10)
    phases = Phases(Tracker([recorder]), "setup", SharedWindows())
    recorder._peak = recorder._level = 4  # of a recorder that loses what others free
    phases.next("call")
    assert phases.growths() == [("cudamem.cpu.peak", 0), ("cudamem.cpu.reserved", 0)]


def test_a_test_that_skips_its_call_has_other_windows() -> None:
    shared, tracker = SharedWindows(), Tracker([Same()])
    found = []
    for names in (("setup", "teardown"), ("setup", "call")):
        phases = Phases(tracker, names[0], shared)
        phases.next(names[1])
        phases.end()
        found.append([window.name for window in phases.close(fresh=False)[0]])
    assert found == [["setup", "teardown"], ["setup", "call"]]


@pytest.mark.parametrize("field", ["incomplete", "_notes", "_unknown"])
def test_what_is_not_known_is_told_apart(field: str) -> None:
    recorder = Same()
    shared, tracker = SharedWindows(), Tracker([recorder])
    values: dict[str, object] = {"incomplete": "no threads", "_notes": ("counts little",), "_unknown": {"blocks": None}}
    found = []
    for value in (getattr(recorder, field), values[field]):
        setattr(recorder, field, value)
        phases = Phases(tracker, "setup", shared)
        phases.end()
        (window,), _ = phases.close(fresh=False)
        found.append((window.complete, window.notes, window.blocks))
    assert found[0] == (True, (), 0)
    expected = {
        "incomplete": (False, ("no threads",), 0),
        "_notes": (True, ("counts little",), 0),
        "_unknown": (True, (), None),
    }
    assert found[1] == expected[field]


def test_only_the_phase_that_missed_something_says_so() -> None:
    recorder = Same()
    phases = Phases(Tracker([recorder]), "setup", SharedWindows())
    phases.next("call")
    recorder.incomplete = "no threads"
    phases.next("teardown")
    recorder.incomplete = None
    phases.end()
    windows, (whole,) = phases.close(fresh=False)
    assert [(window.name, window.complete) for window in windows] == [
        ("setup", True),
        ("call", False),
        ("teardown", True),
    ]
    assert whole.complete


def test_a_device_that_comes_late() -> None:
    tracker = Tracker()
    phases = Phases(tracker, "setup", SharedWindows())
    tracker.attach([FakeRecorder()])
    phases.next("call")
    phases.end()
    late = {"complete": False, "notes": (LATE,)}
    windows, whole = phases.close(fresh=False)
    assert [*windows, *whole] == [
        Window("setup", CPU, **late),  # type: ignore[arg-type]
        Window("call", CPU, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        Window("test", CPU, **late),  # type: ignore[arg-type]
    ]


def test_without_devices_there_are_no_windows() -> None:
    phases = Phases(Tracker(), "setup", SharedWindows())
    phases.next("call")
    phases.end()
    assert (phases.growths(), phases.close(fresh=False)) == ([], ((), ()))


def test_an_interrupted_test_does_not_change_the_next_one() -> None:
    recorder, shared = FakeRecorder(), SharedWindows()
    tracker = Tracker([recorder])
    Phases(tracker, "setup", shared)
    recorder.allocate(10)
    phases = Phases(tracker, "setup", shared)
    recorder.allocate(5, -5)
    phases.end()
    windows, _ = phases.close(fresh=False)
    assert [levels(window) for window in windows] == [("setup", 10, 15, 10, 1)]


class During(FakeRecorder):
    """Runs something while it is read, as a finalizer may run there."""

    action: Callable[[], object] = staticmethod(lambda: None)

    def read_and_reset_peaks(self) -> Counters | None:
        found = super().read_and_reset_peaks()
        action, self.action = self.action, lambda: None
        action()
        return found


@pytest.mark.parametrize("last", [False, True])
def test_a_finalizer_that_opens_a_window_during_a_reading(last: bool) -> None:
    recorder = During()
    tracker = Tracker([recorder])
    phases = Phases(tracker, "setup", SharedWindows())
    recorder.allocate(100, -100)
    recorder.action = lambda: tracker.close(tracker.open("of a finalizer"))
    phases.next("" if last else "call")
    if not last:
        recorder.allocate(7)
        phases.end()
    windows, whole = phases.close(fresh=False)
    after = [] if last else [("call", 0, 7, 7, 1)]
    assert [levels(window) for window in windows] == [("setup", 0, 100, 0, 1), *after]
    assert [levels(window)[2] for window in whole] == [100]


def test_a_finalizer_that_opens_a_window_while_phases_get_spans() -> None:
    recorder = FakeRecorder()
    tracker = Tracker([recorder])
    closed: list[str] = []

    class Opens:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            closed.extend(window.name for window in tracker.close(tracker.open("of a finalizer")))

    phases = Phases(tracker, "setup", SharedWindows())
    phases.next("call")
    recorder.allocate(100, -100)
    threshold = gc.get_threshold()
    try:
        with CollectorPaused():
            Opens()
            gc.set_threshold(1, *threshold[1:])
        phases.divide()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    phases.end()
    windows, whole = phases.close(fresh=False)
    assert closed == ["of a finalizer"]
    assert [(window.name, window.peak) for window in (*windows, *whole)] == [("setup", 0), ("call", 100), ("test", 100)]


def test_two_threads_that_ask_for_windows_at_once() -> None:
    tracker = Tracker([FakeRecorder()])
    phases = Phases(tracker, "setup", SharedWindows())
    phases.next("call")
    asks, found = threading.Event(), []

    def ask() -> None:
        asks.set()
        found.extend(phases.windows)

    thread = threading.Thread(target=ask)
    with tracker.turn:
        thread.start()
        asks.wait()
        thread.join(0.1)  # it waits for its turn
        phases.divide()
    thread.join()
    assert [window.name for window in found] == ["setup"]
    assert [span.name for span in tracker.spans] == ["test", "call"]


STEP = st.one_of(
    st.tuples(st.just("allocate"), st.integers(1, 100)),
    st.tuples(st.sampled_from(["free", "next", "open", "open exclusive", "close", "read", "look"]), st.integers(0, 3)),
)


class Run:
    """One test with phases; spans are open inside it."""

    def __init__(self, *, spans: bool) -> None:
        self.recorders = Same(), FakeRecorder("cuda:0", unknown=("segments",))
        self.tracker = Tracker(self.recorders)
        self.recorders[0].allocate(7)
        self.phases = Phases(self.tracker, "setup", SharedWindows(), spans=spans)
        self.said: list[object] = []
        self._names, self._spans, self._blocks = iter(NAMES[1:]), [], [7]

    def step(self, action: str, value: int) -> None:
        tracker, phases = self.tracker, self.phases
        if action == "allocate":
            self._blocks.append(value)
            for recorder in self.recorders:
                recorder.allocate(value)
        elif action == "free" and len(self._blocks) > 1:
            size = self._blocks.pop(1 + value % (len(self._blocks) - 1))
            for recorder in self.recorders:
                recorder.allocate(-size)
        elif action == "next" and not self._spans and (name := next(self._names, None)):
            phases.next(name)
            self.said += (phases.ended, phases.growths(), phases.name)
        elif action.startswith("open"):
            self._spans.append(tracker.open(action, exclusive=action == "open exclusive"))
        elif action == "close" and self._spans:
            self.said.append(tracker.close(self._spans.pop()))
        elif action == "read":
            self.said.append(tracker.read(self.recorders[value % 2]))
        elif action == "look":
            self.said.append([[*found[1:]] for found in phases.gained(fresh=bool(value % 2))])

    def end(self, *, fresh: bool) -> None:
        while self._spans:
            self.said.append(self.tracker.close(self._spans.pop()))
        self.phases.end()
        self.recorders[0].allocate(13)
        windows, whole = self.phases.close(fresh=fresh)
        self.said += ([*windows], whole, self.tracker.spans, self.tracker.undivided)


@example([("allocate", 5), ("next", 0), ("allocate", 9), ("free", 0), ("open exclusive", 0), ("allocate", 1)], False)
@example([("allocate", 5), ("next", 0), ("free", 0), ("next", 0), ("read", 0), ("allocate", 1)], True)
@given(st.lists(STEP, max_size=25), st.booleans())
def test_with_and_without_spans_the_same_is_measured(program: list[tuple[str, int]], fresh: bool) -> None:
    runs = Run(spans=False), Run(spans=True)
    for run in runs:
        for action, value in program:
            run.step(action, value)
        run.end(fresh=fresh)
    assert runs[0].said == runs[1].said
    assert runs[0].said[-2:] == [[], None]
