"""Operators that fail in place of allocations, as on a card; here the CPU's allocations are counted."""

from __future__ import annotations

import _thread
import time
from collections.abc import Iterator

import pytest
import torch

from cudamem_testing.model.failing import Trapped, Wanted
from cudamem_testing.recorders.cpu import CpuRecorder
from cudamem_testing.recorders.dispatch_trap import DispatchTrap


@pytest.fixture(scope="module")
def recorder() -> Iterator[CpuRecorder]:
    recorder = CpuRecorder(record=True).start()
    yield recorder
    recorder.close()


def program(x: torch.Tensor) -> torch.Tensor:
    x.neg_()
    y = torch.exp(x)
    return torch.tanh(y).view(-1)


def trap(recorder: CpuRecorder, wanted: Wanted, after: DispatchTrap | None = None) -> DispatchTrap:
    return DispatchTrap(recorder._taken, wanted, after)


def counted(recorder: CpuRecorder) -> DispatchTrap:
    found = trap(recorder, Wanted())
    program(torch.zeros(8, 8))
    found.lift()
    return found


def test_operators_that_allocate_are_counted(recorder: CpuRecorder) -> None:
    found = counted(recorder)
    first = program.__code__.co_firstlineno
    calls = [(call.operator, call.size, call.made, call.frames[0][1:]) for call in found.calls]
    assert calls[1:] == [("aten::exp", 256, 1, (first + 2, "program")), ("aten::tanh", 256, 1, (first + 3, "program"))]
    assert found.look() == Trapped(requests=3)


def test_a_thread_of_autograd_has_no_frames(recorder: CpuRecorder) -> None:
    """It calls the trap from C++, with no Python around it."""
    found = trap(recorder, Wanted())
    _thread.start_new_thread(found.call, (torch.ops.aten.exp.default, (torch.zeros(64),), {}))
    end = time.monotonic() + 5
    while not (calls := [call for call in found.calls if call.operator == "aten::exp"]) and time.monotonic() < end:
        time.sleep(0.001)
    found.lift()
    assert [(call.size, [*call.frames]) for call in calls] == [(256, [])]


def test_after_a_counted_run_an_operator_fails_before_it_begins(recorder: CpuRecorder) -> None:
    known = counted(recorder)
    found = trap(recorder, Wanted(nth=2), known)
    x = torch.zeros(8, 8)
    with pytest.raises(torch.OutOfMemoryError, match=r"made to fail by cudamem, before aten::exp"):
        program(x)
    found.lift()
    assert (found.look().failed, found.look().number) == (1, 2)
    assert torch.equal(torch.exp(x), torch.ones(8, 8))  # nothing fails any more


@pytest.mark.parametrize(
    ("wanted", "operator"),
    [(Wanted(nth=2), "exp"), (Wanted(above=255, nth=2), "exp"), (Wanted(above=300), None)],
)
def test_without_one_it_fails_behind_the_operator(recorder: CpuRecorder, wanted: Wanted, operator: str | None) -> None:
    found = trap(recorder, wanted)
    try:
        if operator is None:
            program(torch.zeros(8, 8))
        else:
            with pytest.raises(torch.OutOfMemoryError, match=f"made to fail by cudamem, after aten::{operator}"):
                program(torch.zeros(8, 8))
    finally:
        found.lift()
    assert found.look().failed == (operator is not None)


def test_a_line_is_looked_for_in_the_frames(recorder: CpuRecorder) -> None:
    line = program.__code__.co_firstlineno + 3
    found = trap(recorder, Wanted.parse(at=f"recorders/test_dispatch_trap.py:{line}"))
    with pytest.raises(torch.OutOfMemoryError, match="after aten::tanh"):
        program(torch.zeros(8, 8))
    found.lift()
    assert found.frames()[0][1] == line


def test_backward_passes_are_seen(recorder: CpuRecorder) -> None:
    x = torch.zeros(4, requires_grad=True)
    loss = torch.exp(x).sum()
    found = trap(recorder, Wanted())
    loss.backward()
    found.lift()
    assert "aten::mul" in [call.operator for call in found.calls]
