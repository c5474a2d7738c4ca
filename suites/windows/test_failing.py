"""One allocation of a region fails on purpose, and the first try's memory is free in the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from cudamem_testing import Memory
from cudamem_testing.windows.failing import NotFreed, NothingFailed
from suites.heap import set_aside

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    with set_aside(), Memory.on("cpu") as memory:
        yield memory


def bytes_of(number: int) -> torch.Tensor:
    return torch.empty(number, dtype=torch.uint8)


def three() -> None:
    bytes_of(KIB)
    bytes_of(4 * KIB)
    bytes_of(2 * KIB)


LINE = three.__code__.co_firstlineno


def test_the_nth_allocation_fails(memory: Memory) -> None:
    with memory.fail_allocation(nth=2) as failure, pytest.raises(torch.OutOfMemoryError) as raised:
        three()
    assert (failure.failed, failure.number, failure.size) == (1, 2, 4 * KIB)
    assert failure.line.endswith("suites/windows/test_failing.py:25 in bytes_of")
    assert str(raised.value) == (
        "CPU out of memory. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes "
        "(made to fail by cudamem)"
    )
    three()  # the region is over


def test_only_one_fails(memory: Memory) -> None:
    with memory.fail_allocation(nth=2) as failure:
        with pytest.raises(torch.OutOfMemoryError):
            three()
        three()
    assert (failure.failed, failure.number) == (1, 2)


def test_each_larger_request_fails(memory: Memory) -> None:
    with memory.fail_allocation(above="2KiB") as failure:
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                three()
        bytes_of(2 * KIB)
    assert (failure.failed, failure.number, failure.size) == (2, 4, 4 * KIB)


@pytest.mark.parametrize("file", ["test_failing.py", "windows/test_failing.py", __file__])
def test_the_first_allocation_at_a_line_fails(memory: Memory, file: str) -> None:
    with memory.fail_allocation(at=f"{file}:{LINE + 3}") as failure, pytest.raises(torch.OutOfMemoryError):
        three()
    assert (failure.number, failure.size) == (3, 2 * KIB)


def test_conditions_hold_together(memory: Memory) -> None:
    with memory.fail_allocation(at=f"test_failing.py:{LINE + 2}", nth=2) as failure:
        three()
        with pytest.raises(torch.OutOfMemoryError):
            three()
    assert failure.number == 5
    with memory.fail_allocation(above=KIB, nth=2) as failure, pytest.raises(torch.OutOfMemoryError):
        three()
    assert failure.number == 3


def test_an_allocation_of_another_thread_fails(memory: Memory) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            three()
        except torch.OutOfMemoryError as error:
            raised.append(error.with_traceback(None))

    with memory.fail_allocation(nth=1):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert len(raised) == 1


def test_a_region_in_which_nothing_failed(memory: Memory) -> None:
    with pytest.raises(NothingFailed) as raised, memory.fail_allocation(above="1MiB"):
        three()
    assert str(raised.value) == (
        "cudamem: no allocation failed on cpu: 3 allocations were made, wanted was each allocation of more than 1.0 MiB"
    )
    with pytest.raises(KeyError), memory.fail_allocation(nth=9):  # another error says more
        raise KeyError


def test_a_second_one_is_refused(memory: Memory) -> None:
    outer, inner = memory.fail_allocation(nth=1), memory.fail_allocation(nth=1)
    outer.__enter__()
    with pytest.raises(RuntimeError, match="another allocation is made to fail already: one fail_allocation at a time"):
        inner.__enter__()
    outer.abandon()
    memory.blocks.clear()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, 'which allocation shall fail? Write above="1GiB", nth=5 or at="model.py:88", or several of them'),
        ({"nth": 0}, "nth=0: write a whole number from 1"),
        ({"nth": True}, "nth=True: write a whole number from 1"),
        ({"above": "1"}, "size '1' has no unit: "),
        ({"at": "model.py"}, "at='model.py': write a file and a line, such as at=\"model.py:88\""),
        ({"at": 88}, "at=88: write a file and a line"),
    ],
)
def test_wrong_arguments(memory: Memory, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as raised:
        memory.fail_allocation(**arguments)  # type: ignore[arg-type]
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("nowhere.py:1", 'at="nowhere.py:1": no code of nowhere.py is loaded'),
        ("test_failing.py:1", 'at="test_failing.py:1": line 1 of test_failing.py has no code'),
        ("ailing.py:25", 'at="ailing.py:25": no code of ailing.py is loaded'),
    ],
)
def test_a_line_without_code(memory: Memory, at: str, said: str) -> None:
    with pytest.raises(ValueError) as raised, memory.fail_allocation(at=at):
        pass
    assert str(raised.value) == said
    assert memory.blocks.problems == []  # the error was the word


def work(size: int) -> None:
    activations = bytes_of(size)
    bytes_of(size * 2)
    del activations


def retries_inside_except(size: int) -> None:
    try:
        work(size)
    except torch.OutOfMemoryError:
        work(size // 2)  # the traceback still holds what the first try allocated


def retries_behind_except(size: int) -> None:
    try:
        work(size)
    except torch.OutOfMemoryError:
        size //= 2
    else:
        return
    work(size)


def test_a_retry_inside_except_keeps_the_first_try(memory: Memory) -> None:
    with memory.fail_allocation(above="1MiB") as failure:
        retries_inside_except(MIB)
    assert (failure.failed, failure.kept) == (1, MIB)
    with pytest.raises(NotFreed) as raised:
        failure.assert_freed()
    lines = str(raised.value).splitlines()
    assert lines[0] == "cudamem: 1.0 MiB of the first try were live at the peak after it (cpu)"
    assert lines[1].startswith("   failed: 2.0 MiB at ")
    assert any("test_failing.py:25 in bytes_of" in line for line in lines[2:])
    failure.assert_freed(ignore_below="1MiB")


def test_a_retry_behind_except_frees_the_first_try(memory: Memory) -> None:
    with memory.fail_allocation(above="1MiB") as failure:
        retries_behind_except(MIB)
    assert (failure.failed, failure.kept) == (1, 0)
    failure.assert_freed()


def test_what_was_kept_is_read_at_the_end(memory: Memory) -> None:
    with memory.fail_allocation(nth=1) as failure:
        with pytest.raises(RuntimeError, match="read it after the region has ended"):
            failure.assert_freed()
        with pytest.raises(torch.OutOfMemoryError):
            three()
