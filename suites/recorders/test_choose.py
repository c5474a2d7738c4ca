"""Which recorders a machine offers: by selection, by what there is, and opened and closed as one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from cudamem_testing import torch_api
from cudamem_testing.guards import traced
from cudamem_testing.model.devices import Device
from cudamem_testing.model.records import Environment
from cudamem_testing.recorders import cards, choose, cpu, native
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.recorders.choose import Recorders
from cudamem_testing.recorders.cpu import CpuRecorder
from cudamem_testing.recorders.cuda import CudaRecorder
from cudamem_testing.recorders.history import CudaHistory
from cudamem_testing.recorders.native import NativeRecorder
from cudamem_testing.recorders.profiler import ProfilerRecorder
from cudamem_testing.windows.tracker import Tracker
from suites.recorders.allocator import FUNCTIONS, Allocator
from suites.recorders.in_place import in_place
from suites.recorders.interrupts import Interrupt, interrupting

VERSION = torch_api.version()


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Allocator]:
    allocator = Allocator(cards=2)
    monkeypatch.setattr(torch_api, "allocator_backend", lambda: "native")
    monkeypatch.setattr(cards, "visible_names", lambda: ("NVIDIA H100", "NVIDIA H100"))
    with allocator.in_place():
        yield allocator


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise RecorderUnavailable("no C++ compiler found")

    monkeypatch.setattr(cpu, "CpuRecorder", refuse)


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ("auto", ("cuda:0 (NVIDIA H100)", "cuda:1 (NVIDIA H100)")),
        ("all", ("cuda:0 (NVIDIA H100)", "cuda:1 (NVIDIA H100)", "cpu")),
        ("cpu", ("cpu",)),
        (Device("cuda", 1), ("cuda:1 (NVIDIA H100)",)),
    ],
)
def test_with_two_cards(two_cards: Allocator, selection: str | Device, names: tuple[str, ...]) -> None:
    before = dict(vars(two_cards.bindings))
    recorders = Recorders(selection)
    assert (recorders.opened, recorders.environment) == (False, Environment(torch=VERSION))
    opened = recorders.open()
    assert recorders.opened
    assert recorders.environment == Environment(names, VERSION, "cpu" if names == ("cpu",) else "native")
    assert [str(recorder.device) for recorder in opened] == [name.partition(" ")[0] for name in names]
    kinds = [CpuRecorder if name == "cpu" else CudaRecorder for name in names]
    assert [type(recorder) for recorder in opened] == kinds
    assert recorders.notes == []
    recorders.close()
    recorders.close()
    assert vars(two_cards.bindings) == before


def test_all_cards_share_one_set_of_replaced_functions(two_cards: Allocator) -> None:
    recorders = Recorders("cuda")
    first, second = recorders.open()
    two_cards.cards[1].allocate(512)
    reads = (first.read_and_reset_peaks(), second.read_and_reset_peaks())
    assert [read.allocated for read in reads if read is not None] == [0, 512]
    assert two_cards.bindings._cuda_memoryStats.__wrapped__ == two_cards.statistics
    recorders.close()
    assert [name for name in FUNCTIONS if hasattr(getattr(two_cards.bindings, name), "__wrapped__")] == []


def test_cards_restart_their_common_history_once(two_cards: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(CudaHistory, "start", lambda self: said.append("start"))
    monkeypatch.setattr(CudaHistory, "stop", lambda self: said.append("stop"))
    recorders = Recorders("cuda", record=True)
    tracker = Tracker(recorders.open())
    for recorder in tracker.recorders:
        recorder.wake(limited=False)
    assert said == ["start"]
    with tracker.paused():
        assert said == ["start", "stop"]
    assert said == ["start", "stop", "start"]
    for recorder in tracker.recorders:
        recorder.sleep()
    assert said == ["start", "stop", "start", "stop"]
    recorders.close()


def test_opening_initialises_nothing(two_cards: Allocator) -> None:
    two_cards.initialized = False  # the model raises for any call from here on
    recorders = Recorders("all")
    first, second, _ = recorders.open()
    for recorder in (first, second):
        recorder.wake(limited=True)
        read = recorder.read_and_reset_peaks()
        assert read is not None
        assert (read.allocated, read.reserved, read.allocations) == (0, 0, 0)
    recorders.close()


@pytest.mark.parametrize("selection", ["cuda", Device("cuda", 3)])
def test_a_selection_that_is_not_there_is_noted(monkeypatch: pytest.MonkeyPatch, selection: str | Device) -> None:
    monkeypatch.setattr(torch_api, "cuda_device_count", lambda: 0)
    recorders = Recorders(selection)
    assert recorders.open() == ()
    there = "torch finds no CUDA device"
    assert recorders.notes == [f"{selection} is not on this machine ({there}): nothing is measured"]
    assert recorders.environment == Environment((), VERSION, None)
    recorders.close()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_profiler_measures_with_a_note() -> None:
    recorders = Recorders("cpu")
    (recorder,) = recorders.open()
    assert isinstance(recorder, ProfilerRecorder)
    assert recorders.notes == [
        "no C++ compiler found; on cpu only tests with a limit or a window are measured, and incompletely"
    ]
    recorders.close()


def test_an_interrupted_opening_leaves_nothing_in_place() -> None:
    def state(recorder: NativeRecorder) -> tuple[object, ...]:
        return (
            recorder.is_installed(),
            recorder.set_recording(stacks=False, events=False),
            recorder.events_capacity(),
            recorder.swap_stop_codes([]),
        )

    harness = [test_an_interrupted_opening_leaves_nothing_in_place.__code__]
    with in_place() as recorder:
        recorder.uninstall()
        before = state(recorder)
        assert before[0] is False
        for place in count():
            recorders = Recorders("cpu", record=True, harness=harness)
            try:
                with traced(interrupting(place, choose, cpu, native)):
                    recorders.open()
            except Interrupt:
                if recorders.opened:  # at its very end: whoever has it closes it
                    recorders.close()
                assert state(recorder) == before, place
            else:
                break
        assert place > 300
        assert recorder.is_installed()  # the control: undisturbed, it is in place
        recorders.close()
        assert state(recorder) == before


@pytest.mark.parametrize("step", ["slot", "restart_events", "swap_stop_codes", "set_recording"])
def test_a_step_of_opening_that_fails_leaves_nothing_in_place(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise MemoryError(step)

    with in_place() as recorder:
        recorder.uninstall()
        with monkeypatch.context() as patch:
            patch.setattr(NativeRecorder, step, fail)
            with pytest.raises(MemoryError, match=step):
                Recorders("cpu", record=True).open()
        assert not recorder.is_installed()
        assert recorder.events_capacity() == 0
