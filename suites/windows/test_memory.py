"""Windows, budgets and hard limits by hand, with fake recorders and on real tensors."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.limits import LimitError
from cudamem_testing.model.windows import Window
from cudamem_testing.windows.memory import Memory
from cudamem_testing.windows.regions import OverBudget
from cudamem_testing.windows.tracker import Tracker
from suites.windows.fake import FakeRecorder

MIB = 2**20


@pytest.fixture
def card() -> FakeRecorder:
    return FakeRecorder("cuda:0")


@pytest.fixture
def cpu() -> FakeRecorder:
    return FakeRecorder("cpu")


@pytest.fixture
def memory(card: FakeRecorder, cpu: FakeRecorder) -> Memory:
    return Memory(Tracker([card, cpu]))


# -- windows ----------------------------------------------------------------------------------------------


def test_a_window_can_be_read_while_it_is_open_and_afterwards(memory: Memory, card: FakeRecorder) -> None:
    card.allocate(5)
    with memory.window("decode") as window:
        card.allocate(10)
        card.allocate(-4)
        assert (window.start, window.peak, window.end, window.peak_growth) == (5, 15, 11, 10)
        assert (window.retained, window.allocations, window.reserved_growth) == (6, 1, 10)
        card.allocate(20)
    card.allocate(100)
    assert (window.start, window.peak, window.end, window.peak_growth) == (5, 31, 31, 26)
    assert (window.retained, window.allocations, window.reserved_growth) == (26, 2, 26)
    assert (
        str(window) == "decode on cuda:0: start 5 B, peak 31 B, end 31 B\ndecode on cpu: start 0 B, peak 0 B, end 0 B"
    )


def test_pinned_memory_is_printed_only_where_it_was_used() -> None:
    host = FakeRecorder("host")
    memory = Memory(Tracker([FakeRecorder("cpu"), host]))
    with memory.window("decode") as window:
        pass
    assert str(window) == "decode on cpu: start 0 B, peak 0 B, end 0 B"
    with memory.window("load") as window:
        host.allocate(5)
    assert str(window).splitlines()[1] == "load on host: start 0 B, peak 5 B, end 5 B"


@pytest.mark.parametrize(
    "spelling", [0, "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda:0"), Device("cuda", 0)]
)
def test_every_spelling_of_a_device_finds_its_window(memory: Memory, card: FakeRecorder, spelling: object) -> None:
    with memory.window("decode") as window:
        card.allocate(3)
    assert window[spelling].retained == 3
    assert window[torch.device("cpu")].retained == 0


def test_a_device_that_is_not_measured(memory: Memory) -> None:
    with memory.window("decode") as window:
        pass
    with pytest.raises(KeyError) as caught:
        window["cuda:1"]
    assert caught.value.args == ("cuda:1 is not measured (measured: cuda:0, cpu)",)
    with pytest.raises(ValueError, match="device 'gpu' is not known"):
        window["gpu"]
    with pytest.raises(ValueError, match=r"^cuda:3 is not measured \(measured: cuda:0, cpu\)$"):
        memory.limit(1, device=3)
    with pytest.raises(ValueError, match=r"^host is not measured \(measured: cuda:0, cpu\)$"):
        memory.statistics("host")


def test_with_no_device_at_all() -> None:
    memory = Memory(Tracker())
    with memory.window("decode") as window:
        pass
    assert window.windows == ()
    with pytest.raises(RuntimeError, match=r"^window 'decode' measured no device$"):
        _ = window.peak
    with pytest.raises(KeyError, match=r"cpu is not measured \(measured: nothing\)"):
        window["cpu"]
    with pytest.raises(ValueError, match=r"^a device is not measured \(measured: nothing\)$"):
        memory.limit(1)
    with pytest.raises(ValueError, match=r"^cuda:0 is not measured \(measured: nothing\)$"):
        memory.statistics(0)


def test_a_window_is_entered_once_and_left_once(memory: Memory) -> None:
    window = memory.window("decode")
    with pytest.raises(RuntimeError, match=r"^window 'decode' has not begun$"):
        _ = window.windows
    with pytest.raises(RuntimeError, match=r"^window 'decode' was left before it was entered$"):
        window.__exit__(None, None, None)
    with window, pytest.raises(RuntimeError, match=r"^window 'decode' was entered twice: make another one"):
        window.__enter__()


@pytest.mark.parametrize("name", [3, None, Path("decode"), torch.device("cpu")])
def test_the_name_of_a_window_is_text(memory: Memory, name: Any) -> None:
    for make in (memory.window, lambda name: memory.budget(peak=1, name=name)):
        with pytest.raises(TypeError, match=f"^the name of a window is text, not {type(name).__name__}$"):
            make(name)


@pytest.mark.parametrize("name", ["setup", "call", "teardown", "warm-up", "test", "", " \t"])
def test_a_window_is_not_called_like_one_of_the_test(memory: Memory, name: str) -> None:
    for make in (memory.window, lambda name: memory.budget(peak=1, name=name)):
        with pytest.raises(ValueError, match="a window") as caught:
            make(name)
        assert str(caught.value) == (
            f"a window cannot be called {name!r}: reports call a test's own setup, call, teardown, warm-up, test"
        )


def test_the_name_of_a_window_takes_one_line(memory: Memory) -> None:
    with memory.window("step\n\x1b[31m2 é") as window:
        pass
    assert window["cpu"].name == r"step\n\x1b[31m2 é"


def test_an_exception_passes_and_the_window_ends(memory: Memory, card: FakeRecorder) -> None:
    def body() -> None:
        card.allocate(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match=r"^'mine'$"), memory.budget(peak=0) as window:
        body()
    assert window.peak == 1
    assert len(window.windows) == 2


# -- budgets ----------------------------------------------------------------------------------------------


def test_a_broken_budget_says_what_and_where(memory: Memory, card: FakeRecorder) -> None:
    with pytest.raises(OverBudget) as caught, memory.budget(peak=512, retained=0, name="decode"):
        card.allocate(1024, -512)
    assert isinstance(caught.value, AssertionError)
    assert [finding.cause for finding in caught.value.findings] == ["budget peak at most", "budget retained at most"]
    assert str(caught.value) == (
        "cudamem: peak 1.0 KiB above start is over its budget of 512 B by 512 B (decode, cuda:0)\n"
        "start 0 B, peak 1.0 KiB, end 512 B\n"
        "cudamem: retained 512 B is over its budget of 0 B by 512 B (decode, cuda:0)\n"
        "start 0 B, end 512 B"
    )


def test_a_budget_that_holds(memory: Memory, card: FakeRecorder, cpu: FakeRecorder) -> None:
    limits = {"peak": {"cuda": "1KiB", "cpu": None}, "at_least": {"allocations": {"cpu": 1}}}
    with memory.budget(**limits, allocations=2) as window:  # type: ignore[arg-type]
        card.allocate(1024)
        cpu.allocate(9999)
    assert window.peak_growth == 1024


def test_every_argument_of_the_marker_is_taken(memory: Memory, card: FakeRecorder) -> None:
    card.allocate(100)
    tight = memory.budget(peak=99, reserved=100, retries=0, device=0, absolute=True)
    with pytest.raises(OverBudget, match="peak 100 B is over its budget of 99 B by 1 B"), tight:
        pass
    with pytest.raises(LimitError) as caught:
        memory.budget(peak="x", retries=-1)
    assert len(caught.value.problems) == 2
    with pytest.raises(LimitError, match="sets no limit"):
        memory.budget()


def test_a_callback_gets_every_window_and_decides_about_failure(card: FakeRecorder) -> None:
    told: list[tuple[list[str], list[str | None]]] = []

    def tell(windows: Sequence[Window], findings: Sequence[Finding]) -> bool:
        told.append(([window.name for window in windows], [finding.cause for finding in findings]))
        return False

    memory = Memory(Tracker([card]), tell)
    with memory.window("outer"), memory.budget(peak=0, name="inner"):
        card.allocate(1)
    assert told == [(["inner"], ["budget peak at most"]), (["outer"], [])]


# -- hard limits ------------------------------------------------------------------------------------------


def test_limits_are_set_for_the_chosen_devices_and_lifted(
    memory: Memory, card: FakeRecorder, cpu: FakeRecorder
) -> None:
    with memory.limit("1KiB"):
        assert (card.limits, cpu.limits) == ([1024], [1024])
        with memory.limit(5, device="cpu"):
            assert (card.limits, cpu.limits) == ([1024], [1024, 5])
    assert (card.limits, cpu.limits) == ([], [])


@pytest.mark.parametrize("size", ["x", -1, None, 1.5])
def test_a_malformed_limit_is_refused_before_anything_is_set(memory: Memory, card: FakeRecorder, size: object) -> None:
    with pytest.raises(ValueError, match="size"):
        memory.limit(size)
    assert card.history == []


def test_limits_are_lifted_after_errors(
    memory: Memory, card: FakeRecorder, cpu: FakeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZeroDivisionError), memory.limit(1):
        _ = 1 / 0
    assert (card.limits, cpu.limits) == ([], [])

    def refuse(size: int) -> None:
        raise RuntimeError("no limit here")

    monkeypatch.setattr(cpu, "limit", refuse)
    with pytest.raises(RuntimeError, match="no limit here"), memory.limit(1):
        pytest.fail("the region must not begin")
    assert card.limits == []


def test_a_limit_that_is_entered_twice_stays_lifted(memory: Memory, card: FakeRecorder) -> None:
    region = memory.limit(1)
    with region:
        pass
    with pytest.raises(RuntimeError, match="entered twice"), region:
        pytest.fail("the region must not begin")
    assert card.limits == []


def test_excess_that_the_allocator_allowed_is_found_at_the_end(memory: Memory, card: FakeRecorder) -> None:
    with pytest.raises(OverBudget) as caught, memory.limit("1KiB"):
        card.allocate(1025)
    assert str(caught.value).splitlines()[0] == (
        "cudamem: peak 1.0 KiB above start is over its budget of 1.0 KiB by 1 B (limit, cuda:0)"
    )
    assert card.limits == []


def test_statistics(memory: Memory, card: FakeRecorder, cpu: FakeRecorder) -> None:
    card.allocate(3)
    cpu.allocate(4)
    assert (memory.statistics().allocated, memory.statistics("cpu").allocated) == (3, 4)


# -- on real tensors --------------------------------------------------------------------------------------


@pytest.fixture
def real() -> Iterator[Memory]:
    gc.collect()  # nothing of other tests goes meanwhile
    with Memory.on("cpu") as memory:
        yield memory


@pytest.fixture
def switching() -> Iterator[None]:
    """Python goes from one thread to the next as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def take(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def test_a_window_on_cpu_is_exact_to_the_byte(real: Memory) -> None:
    with real.window("exact") as window:
        kept = take(1000)
        temporary = take(3 * MIB)
        del temporary
    found = window["cpu"]
    assert (found.peak_growth, found.retained, found.allocations) == (3 * MIB + 1000, 1000, 2)
    assert (found.requested_growth, found.reserved_growth, found.retries) == (3 * MIB + 1000, None, 0)
    assert (found.blocks, found.complete, found.notes) == (1, True, ())
    with real.window("freed") as freed:
        del kept
    assert (freed.retained, freed.peak_growth) == (-1000, 0)


def test_every_thread_counts_and_so_does_backward(real: Memory) -> None:
    weight = torch.ones(256, 256, requires_grad=True)
    with real.window("thread") as window:
        thread = threading.Thread(target=lambda: take(MIB))
        thread.start()
        thread.join()
    assert (window.peak_growth, window.retained) == (MIB, 0)
    with real.window("backward") as window:
        (weight * 2).sum().backward()
    assert window.retained == weight.nbytes


def test_windows_of_several_threads_miss_nothing(real: Memory, switching: None) -> None:
    peaks: list[int] = []

    def body() -> None:
        for _ in range(100):
            with real.window("mine") as window:
                temporary = take(MIB)
                del temporary
            peaks.append(window.peak or 0)

    threads = [threading.Thread(target=body) for _ in range(8)]
    take(8 * MIB)  # the most that this test can take: how many of the threads meet changes nothing
    with real.window("all") as outer:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [peak for peak in peaks if not MIB <= peak <= (outer.peak or 0)] == []
    assert (len(peaks), outer.allocations, outer.retained) == (800, 800, 0)


def too_much() -> None:
    first = take(100)
    del first
    take(101)  # too much


def test_a_limit_on_cpu_raises_at_the_line_and_is_lifted(real: Memory) -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught, real.limit(100):
        too_much()
    assert str(caught.traceback[-2].statement).strip() == "take(101)  # too much"
    assert take(MIB).numel() == MIB


def test_a_limit_on_cpu_holds_on_every_thread(real: Memory) -> None:
    caught: list[BaseException] = []

    def body() -> None:
        try:
            take(101)
        except torch.OutOfMemoryError as error:
            caught.append(error)

    with real.limit(100):
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
    assert len(caught) == 1


def test_limits_on_cpu_nest(real: Memory) -> None:
    with real.limit(1000):
        with real.limit(10 * MIB), pytest.raises(torch.OutOfMemoryError):
            take(1001)
        with real.limit(10):
            with pytest.raises(torch.OutOfMemoryError):
                take(11)
            take(10)
        take(1000)
        with pytest.raises(torch.OutOfMemoryError):
            take(1001)
    take(10 * MIB)


def test_limits_on_cpu_end_in_any_order(real: Memory) -> None:
    wide, narrow = real.limit(1000), real.limit(10)
    wide.__enter__()
    narrow.__enter__()
    wide.__exit__(None, None, None)
    with pytest.raises(torch.OutOfMemoryError):
        take(11)
    narrow.__exit__(None, None, None)
    take(10 * MIB)


def test_a_limit_inside_the_limit_of_a_session_around(real: Memory) -> None:
    with real.limit(100):
        with Memory.on("cpu") as inner, inner.limit(1000), pytest.raises(torch.OutOfMemoryError):
            take(101)
        with pytest.raises(torch.OutOfMemoryError):
            take(101)
    take(101)


def test_limits_of_several_threads_are_all_lifted(real: Memory, switching: None) -> None:
    def body() -> None:
        for size in range(1, 500):
            with real.limit(size * MIB):
                pass

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    take(1000 * MIB)


def test_a_session_inside_a_session(real: Memory) -> None:
    with real.window("outer") as outer:
        with Memory.on("cpu") as inner, inner.window("inner") as window:
            temporary = take(MIB)
            del temporary
        kept = take(10)
    assert (window.peak_growth, outer.peak_growth, outer.retained) == (MIB, MIB, 10)
    del kept


def test_an_unknown_device_is_refused() -> None:
    message = r"^device 'gpu' is not known: write auto, all, cpu, cuda or cuda:N$"
    with pytest.raises(ValueError, match=message), Memory.on("gpu"):
        pytest.fail("must not begin")
