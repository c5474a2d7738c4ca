"""Readings that native code keeps at the boundaries of a test: its windows are those of readings in Python."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.windows import SharedWindows
from cudamem_testing.recorders.base import Recorder
from cudamem_testing.recorders.cpu import CpuRecorder
from cudamem_testing.recorders.cuda import CudaRecorder, CudaStatistics
from cudamem_testing.recorders.native import NativeRecorder
from cudamem_testing.recorders.native_boundaries import NativeBoundaries
from cudamem_testing.windows import phases
from cudamem_testing.windows.phases import Phases
from cudamem_testing.windows.tracker import Tracker
from suites.recorders.allocator import FUNCTIONS
from suites.recorders.device import CppAllocator
from suites.recorders.in_place import in_place

CARD = Device("cuda", 0)
NAMES = ("call", "teardown")
Step = tuple[str, int]


class PythonTracker(Tracker):
    """Reads everything in Python."""

    def boundaries(self) -> None:
        """None are kept natively."""


class Measured:
    """One test after the other, measured by one tracker; ``said`` is all that it says of them."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.said: list[Any] = []
        self.natively = 0  # tests that began so
        self.kept: list[bool] = []  # whether they still were, at each boundary inside
        self._shared = SharedWindows()
        self._begin()

    def _begin(self) -> None:
        for recorder in self.tracker.recorders:
            recorder.wake(limited=False)
        self.phases = Phases(self.tracker, "setup", self._shared)
        self.natively += self.phases._native is not None
        self._names, self._spans = iter(NAMES), []

    def step(self, action: str, value: int) -> None:
        tracker, phases = self.tracker, self.phases
        if action == "next" and not self._spans and (name := next(self._names, None)):
            phases.next(name)
            self.kept.append(phases._native is not None)
            self.said += [phases.growths(), phases.name, *([phases.ended] if value == 0 else [])]
        elif action.startswith("open"):
            self._spans.append(tracker.open(action, exclusive=action == "open exclusive"))
        elif action == "close" and self._spans:
            self.said.append(tracker.close(self._spans.pop()))
        elif action == "read":
            self.said.append(tracker.read(tracker.recorders[0])._replace(allocations=None))  # of the whole process
        elif action == "look":
            self.said.append([found[1:] for found in phases.gained(fresh=bool(value % 2))])
        elif action == "end":
            self.end(fresh=value == 3)
            self._begin()

    def end(self, *, fresh: bool) -> None:
        while self._spans:
            self.said.append(self.tracker.close(self._spans.pop()))
        self.phases.end()
        self.said.append([found[1:] for found in self.phases.gained(fresh=False)])
        windows, whole = self.phases.close(fresh=fresh)
        self.said += ([*windows], whole, [recorder.incomplete for recorder in self.tracker.recorders])


MEASURING = st.tuples(
    st.sampled_from(["next", "next", "end", "open", "open exclusive", "close", "read", "look"]), st.integers(0, 3)
)
ON_THE_CPU = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["take", "free", "new owner", "replace", "return"]), st.integers(0, 9)), MEASURING
    ),
    max_size=40,
)


@pytest.fixture
def both() -> Iterator[list[Measured]]:
    """Two who measure the CPU, with native boundaries and without."""
    with in_place(), ExitStack() as leaving:
        yield [Measured(tracker((cpu(leaving),))) for tracker in (Tracker, PythonTracker)]


def cpu(leaving: ExitStack) -> CpuRecorder:
    recorder = CpuRecorder(record=True).start()
    leaving.callback(recorder.close)
    return recorder


@example([("take", 5), ("next", 1), ("take", 9), ("free", 0), ("look", 0), ("next", 1), ("end", 0)])
@example([("take", 5), ("next", 1), ("replace", 0), ("take", 9), ("next", 1), ("return", 0), ("take", 2), ("end", 0)])
@example([("next", 1), ("free", 0), ("new owner", 0), ("next", 1), ("open exclusive", 0), ("take", 1), ("end", 3)])
@given(ON_THE_CPU)
def test_the_same_is_measured_on_the_cpu(program: list[Step]) -> None:
    assert on_the_cpu(program, Tracker).said == on_the_cpu(program, PythonTracker).said


def on_the_cpu(program: Sequence[Step], tracker: Callable[[Sequence[Recorder]], Tracker]) -> Measured:
    with in_place() as native, ExitStack() as leaving:
        kept, measured = [torch.empty(1000)], Measured(tracker([cpu(leaving)]))
        for action, value in program:
            if action == "take":
                kept.append(torch.empty(1 + 100 * value))
            elif action == "free" and kept:
                del kept[value % len(kept)]
            elif action == "new owner":
                native.enter_new_owner()
            elif action == "replace":
                native.uninstall()
            elif action == "return":
                native.install()
            else:
                measured.step(action, value)
        measured.end(fresh=False)
    return measured


def test_native_code_keeps_what_is_read(both: list[Measured]) -> None:
    kept = []
    for tests in both:
        for _ in range(2):
            phases = tests.phases
            tests.step("end", 0)
            assert phases._native is None  # that keeps the readings of the next test now
    for tests in both:
        kept.append(torch.empty(1000))
        for _ in range(2):
            tests.step("next", 1)
        kept.clear()
        tests.step("end", 0)
    assert [tests.natively for tests in both] == [4, 0]
    assert both[0].phases._reads == []
    (call,) = both[0].said[-3][1:2]
    assert call == both[1].said[-3][1]


def test_what_was_read_last_is_known_after_a_test(both: list[Measured]) -> None:
    """Where nothing is live on a card, the end of a file reads no record."""
    known = []
    kept = torch.empty(1000)
    for tests, others in (both, both[::-1]):
        (recorder,), (unknown,) = tests.tracker.recorders, others.tracker.recorders
        for _ in range(2):
            tests.step("end", 0)
        tests.end(fresh=False)
        known.append((tests.tracker.known(recorder), tests.tracker.known(unknown)))
    del kept
    assert known[0] == known[1]
    assert known[0][0] is not None
    assert known[0][1] is None


def test_equal_tests_share_their_windows(both: list[Measured]) -> None:
    tests = both[0]

    def windows(*sizes: int) -> tuple[Any, ...]:
        for size in sizes:
            torch.empty(size)
        tests.phases.next("call")
        torch.empty(10)
        tests.phases.end()
        found = tests.phases.close(fresh=False)
        tests._begin()
        return found

    windows(5)
    first, again, *others = windows(500), windows(500), windows(5000), windows(500, 500)
    assert all(one is another for one, another in zip(first, again, strict=True))
    assert [first[place] == other[place] for place in range(2) for other in others] == [False] * 4


def test_after_a_replacement_native_code_reads_again(both: list[Measured]) -> None:
    tests = both[0]
    native = NativeRecorder.load()
    native.uninstall()
    tests.step("next", 1)
    tests.step("end", 0)
    assert tests.tracker.recorders[0].incomplete is None  # it is in place again
    assert [window.complete for window in tests.said[-3]] == [False, False]
    tests.step("end", 0)
    assert tests.natively == 2


def test_a_window_that_a_finalizer_opens_as_a_test_begins(
    both: list[Measured], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = both[0].tracker
    both[0].end(fresh=False)
    opened, boundaries = [], tracker.boundaries

    def boundaries_after_a_collection() -> NativeBoundaries | None:
        opened.append(tracker.open("of a finalizer"))
        return boundaries()

    monkeypatch.setattr(tracker, "boundaries", boundaries_after_a_collection)
    both[0]._begin()
    torch.empty(1000)
    both[0].phases.next("call")
    (window,) = tracker.close(opened[0])
    assert (window.peak or 0) - (window.start or 0) == 4000


def test_a_boundary_that_was_interrupted_is_read_again(both: list[Measured]) -> None:
    phases = both[0].phases
    native = phases._native
    assert native is not None
    read = native.read

    def interrupted(number: int) -> bool:
        read(number)
        raise KeyboardInterrupt

    native.read = interrupted
    with pytest.raises(KeyboardInterrupt):
        phases.next("call")
    native.read = read
    phases.next("teardown")
    torch.empty(1000)
    phases.end()
    grown = dict(phases.growths())
    windows, whole = phases.close(fresh=False)
    assert [(one.name, (one.peak or 0) - (one.start or 0)) for one in (*windows, *whole)] == [
        ("setup", 0),
        ("teardown", 4000),
        ("test", 4000),
    ]
    assert grown == {"cudamem.cpu.peak": 4000}


def test_what_was_read_last_is_never_that_of_an_earlier_test(both: list[Measured]) -> None:
    known: list[list[Counters | None]] = [[], []]
    for size in (10, 1000, 10):
        kept = torch.empty(size)
        for tests, found in zip(both, known, strict=True):
            tests.step("end", 0)  # the phases of the next one have begun
            found.append(tests.tracker.known(tests.tracker.recorders[0]))
        del kept
    assert known[0] == known[1]
    assert [(known[0][1].allocated or 0) - (one.allocated or 0) for one in known[0] if one and known[0][1]] == [
        3960,
        0,
        3960,
    ]


# -- a card ------------------------------------------------------------------------------------------------

ON_A_CARD = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["take", "take", "free"]), st.integers(0, 3)),
        st.tuples(st.just("empty cache"), st.just(0)),
        st.tuples(st.just("user"), st.integers(0, len(FUNCTIONS) - 1)),
        st.tuples(st.sampled_from(["another comes", "another goes"]), st.just(0)),
        MEASURING,
    ),
    max_size=40,
)
SIZES = (512, 5000, 2**20, 9 * 2**20)


def on_a_card(
    program: Sequence[Step], allocator: CppAllocator, tracker: Callable[[Sequence[Recorder]], Tracker]
) -> Measured:
    """Beside the CPU, on which as much happens."""
    with in_place(), allocator.in_place(native=True), ExitStack() as leaving:
        statistics, others = CudaStatistics(), list[CudaStatistics]()
        leaving.callback(statistics.close)
        tests = Measured(tracker([cpu(leaving), CudaRecorder(CARD, statistics)]))
        card, user, kept = allocator.cards[0], sorted(FUNCTIONS), list[torch.Tensor]()
        for action, value in program:
            if action == "take":
                card.allocate(SIZES[value])
                kept.append(torch.empty(SIZES[value], dtype=torch.uint8))
            elif action == "free" and value < len(card.blocks):
                card.free(value)
                del kept[value]
            elif action == "empty cache":
                allocator.empty_cache()
            elif action == "user":
                getattr(allocator.bindings, user[value])(0)
            elif action == "another comes":
                others.append(CudaStatistics())
                leaving.callback(others[-1].close)
            elif action == "another goes" and others:
                others.pop().close()
            else:
                tests.step(action, value)
        tests.end(fresh=False)
    return tests


@example([("end", 0), ("take", 1), ("next", 1), ("take", 2), ("free", 1), ("next", 1), ("end", 0), ("next", 1)])
@example([("take", 2), ("free", 0), *[("end", 0)] * 3, ("take", 1), ("free", 0), ("user", 3), ("next", 1), ("take", 0)])
@given(ON_A_CARD)
def test_the_same_is_measured_on_a_card(device_library: ctypes.PyDLL, program: list[Step]) -> None:
    natively = on_a_card(program, CppAllocator(device_library), Tracker)
    in_python = on_a_card(program, CppAllocator(device_library), PythonTracker)
    assert natively.said == in_python.said


def test_a_card_is_read_natively_from_the_second_test(device: CppAllocator) -> None:
    program = [("take", 1), ("end", 0), ("take", 1), ("next", 1), ("free", 0), ("next", 1), ("end", 0)]
    assert on_a_card(program, device, Tracker).natively == 2


@pytest.mark.parametrize("what", ["another comes", "user"])
def test_python_reads_a_card_once_something_must_be_added(device: CppAllocator, what: str) -> None:
    before = [("take", 1), ("end", 0), ("next", 1)]
    reset = sorted(FUNCTIONS).index("_cuda_resetPeakMemoryStats")
    assert on_a_card([*before, (what, reset), ("next", 1)], device, Tracker).kept == [True, False]


def test_a_finalizer_may_open_a_window_while_python_takes_over(
    device: CppAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code has read the CPU at a boundary, and Python has to read the card: the CPU's peak is kept."""
    with in_place(), device.in_place(native=True), ExitStack() as leaving:
        statistics = CudaStatistics()
        leaving.callback(statistics.close)
        tests = Measured(Tracker([cpu(leaving), CudaRecorder(CARD, statistics)]))
        tests.step("end", 0)
        collects, tracker = [True], tests.tracker

        class Collects(CollectorPaused):
            """As a collection that runs when it is made."""

            def __init__(self) -> None:
                if collects and collects.pop():
                    tracker.close(tracker.open("of a finalizer"))

        torch.empty(1000)
        device.bindings._cuda_resetPeakMemoryStats(0)
        monkeypatch.setattr(phases, "CollectorPaused", Collects)
        tests.phases.next("call")
        tests.phases.end()
        windows, whole = tests.phases.close(fresh=False)
    grown = [(one.name, one.device.kind, (one.peak or 0) - (one.start or 0)) for one in (*windows, *whole)]
    setup = [("setup", "cpu", 4000), ("setup", "cuda", 0)]
    assert (collects, grown) == (
        [],
        [*setup, ("call", "cpu", 0), ("call", "cuda", 0), ("test", "cpu", 4000), ("test", "cuda", 0)],
    )


# -- what native code says ---------------------------------------------------------------------------------


def test_what_is_read_of_each_device(native: NativeRecorder, device: CppAllocator) -> None:
    with native.slot() as slot, device.in_place(native=True):
        card = device.native_card(0)
        functions = slot.counting(Counters)
        names = ["cpu", "cpu reserved", "card", "card reserved"]
        all_of_them = native.boundaries([functions.source, card.source], names)
        assert all_of_them.read(0) is False  # the card's reader is not alone
        ((of_cpu, of_card),) = all_of_them.counters()
        assert (type(of_cpu), of_card) == (Counters, None)
        card.set_alone(True)
        device.cards[0].allocate(512)
        assert all_of_them.read(0) is True
        kept = torch.empty(1000, dtype=torch.uint8)
        device.cards[0].allocate(1024)
        assert [all_of_them.read(1), all_of_them.read(2)] == [True, True]
        first, second, third = all_of_them.counters()
        assert [one is another for one, another in zip(second, third, strict=True)] == [True, True]
        for place, size in ((0, 1000), (1, 1024)):
            before, after = first[place], second[place]
            assert before is not None
            assert after is not None
            assert (after.allocated or 0) - (before.allocated or 0) == all_of_them.gained()[place][0] == size
        assert all_of_them.gained()[1] == (1024, 1)
        assert all_of_them.grown() == [("cpu", 0), ("card", 0), ("card reserved", 0)]
        del kept


def test_what_is_kept_is_freed(native: NativeRecorder) -> None:
    with native.slot() as slot:
        names = ["a name", "another"]
        before = [sys.getrefcount(one) for one in (Counters, names[0])]
        functions = slot.counting(Counters)
        boundaries = native.boundaries([functions.source], names)
        boundaries.read(0)
        boundaries.counters()
        assert boundaries.read(1)
        assert boundaries.grown() == [("a name", 0)]
        del functions, boundaries
        assert [sys.getrefcount(one) for one in (Counters, names[0])] == before
