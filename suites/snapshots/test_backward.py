"""Backward passes in a recording, and what they let go."""

from __future__ import annotations

from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.snapshots.backward import backward_passes, made_with_grad, saved_for_backward
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.snapshots.replay import Replay, replay

FORWARD, BACKWARD = 1, 2
ENGINE = Frame("torch/autograd/graph.py", 9, "_engine_run_backward", "library")
STACKS = {FORWARD: Stack((Frame("net.py", 1, "forward"),)), BACKWARD: Stack((ENGINE, Frame("net.py", 2, "step")))}


def recorded(*program: tuple[int, int]) -> Replay:
    """A replay of blocks by their numbers: with a stack (allocated), or without one (0, freed)."""
    rows = [
        (block, 10, block, place, stack, 0, 1, 0 if stack else 1, int(stack == FORWARD))
        for place, (block, stack) in enumerate(program)
    ]
    freed = {block for block, stack in program if not stack}
    live = [(block, 10, block, stack, 0, 1) for block, stack in program if stack and block not in freed]
    return replay(read_cpu(live, rows, STACKS.__getitem__))


def test_what_a_pass_lets_go_was_saved() -> None:
    program = [(1, FORWARD), (2, FORWARD), (2, 0), (3, FORWARD), (4, FORWARD)]
    program += [(5, BACKWARD), (3, 0), (6, BACKWARD), (1, 0), (5, 0), (7, BACKWARD), (4, 0)]
    found = recorded(*program)
    assert [*backward_passes(found, 0, found.end)] == [(5, 10)]
    assert saved_for_backward(found, 0, found.end) == {0, 3}  # not 2, which the forward pass freed, nor 4, freed after
    assert saved_for_backward(found, 1, found.end) == {3}
    assert made_with_grad(found, 1, 6) == {1, 3, 4}


def test_several_passes() -> None:
    one = [(1, FORWARD), (2, BACKWARD), (1, 0), (3, BACKWARD)]
    two = [(4, FORWARD), (5, BACKWARD), (4, 0), (6, BACKWARD)]
    found = recorded(*one, *two)
    assert [*backward_passes(found, 0, found.end)] == [(1, 3), (5, 7)]
    assert saved_for_backward(found, 0, found.end) == {0, 4}
    single = recorded((1, FORWARD), (2, BACKWARD), (1, 0))
    assert [*backward_passes(single, 0, single.end)] == []
    assert saved_for_backward(single, 0, single.end) == set()
