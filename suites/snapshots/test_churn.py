"""Churn: which lines allocate and free again at once."""

from __future__ import annotations

import pytest
import torch

from cudamem_testing import Memory, OverBudget
from cudamem_testing.model.churn import LOOP, SOON
from cudamem_testing.snapshots.churn import churn
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.replay import replay
from suites.snapshots.allocator import FRAMES, MIB, Allocator


def held_for(others: int, times: int) -> int:
    """How many blocks count as freed at once, if so many others are allocated before each is freed."""
    allocator = Allocator()
    for _ in range(times):
        block = allocator.malloc(3 * MIB, frames=FRAMES[0])
        kept = [allocator.malloc(512, frames=FRAMES[1]) for _ in range(others)]
        allocator.free(block)
        for one in kept:
            allocator.free(one)
    found = churn(replay(read(allocator.snapshot())))
    return next(one.soon for one in found.lines if one.line.startswith("project/layer1"))


def test_a_block_is_freed_at_once_if_few_others_came_between() -> None:
    assert held_for(SOON, 3) == 3
    assert held_for(SOON + 1, 3) == 0


def test_lines_in_a_loop() -> None:
    """A line is in a loop from the tenth block on; blocks that stay, and those freed after the end, are not counted."""
    allocator = Allocator()
    stays = [allocator.malloc(MIB, frames=FRAMES[2]) for _ in range(30)]
    for times, frames in ((LOOP, FRAMES[0]), (LOOP - 1, FRAMES[1])):
        for _ in range(times):
            allocator.free(allocator.malloc(2 * MIB + 1000 * times, frames=frames))
    last = len(allocator.trace)
    for one in stays:
        allocator.free(one)
    found = churn(replay(read(allocator.snapshot())), 0, last)
    assert str(found) == (
        "10 of 49 allocations on cuda:0 were freed again at once, in a loop\n"
        "   10 blocks  20.1 MiB  project/layer1.py:1 in forward  torch/nn/functional.py linear"
    )
    assert [*found.allocated(2)] == [
        "allocations, by line",
        "   30 blocks  30.0 MiB                    project/layer3.py:3 in forward  torch/nn/functional.py linear",
        "   10 blocks  20.1 MiB  10 freed at once  project/layer1.py:1 in forward  torch/nn/functional.py linear",
        "   ... 1 more line: 9",
    ]


def test_a_window_tells_its_churn() -> None:
    """Only what was allocated inside counts."""
    with Memory.on("cpu") as memory:
        for _ in range(40):
            torch.empty(1000)
        with memory.window("decode") as window:
            for _ in range(25):
                torch.empty(2**18)
            kept = torch.empty(10)
        for _ in range(40):
            torch.empty(1000)
        found = window.churn()
    (row,) = found.rows
    assert (row.blocks, row.soon, row.largest, row.bytes) == (25, 25, MIB, 25 * MIB)
    assert row.line.endswith("in test_a_window_tells_its_churn")
    assert found.blocks == 26
    del kept


def test_a_limit_of_allocations_names_the_lines() -> None:
    def decode() -> None:
        for _ in range(25):
            torch.empty(2**18)

    with Memory.on("cpu") as memory, pytest.raises(OverBudget) as caught, memory.budget(allocations=5):
        decode()
    lines = str(caught.value).splitlines()
    assert lines[0] == "cudamem: allocations 25 is over its budget of 5 by 20 (budget, cpu)"
    assert lines[1] == "allocations, by line"
    assert lines[2].split()[:6] == ["25", "blocks", "25.0", "MiB", "25", "freed"]
    assert "test_churn.py" in lines[2]


def test_without_events_it_is_unknown() -> None:
    from cudamem_testing.windows.judge import Judge

    with pytest.raises(ValueError, match="churn is unknown: stacks and events are not recorded here"):
        Judge().churn((), None)  # type: ignore[arg-type]
