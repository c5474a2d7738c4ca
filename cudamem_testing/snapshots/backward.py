"""Backward passes in a recording, and the memory that autograd kept for them.

An operator of a backward pass allocates below autograd's engine: on the CPU the engine's call is in the stack, on a
card it runs in a thread without Python frames. What was allocated before such a pass and freed between its first and
its last allocation was released by a node that the pass had finished with: autograd had saved it. A graph that is never
run is released with its output, which events do not distinguish from other memory; they do show grad mode.
One pass over the events. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator

from cudamem_testing.model.stacks import Stack
from cudamem_testing.snapshots.record import Kind
from cudamem_testing.snapshots.replay import Replay

ENGINE = ("torch/autograd/graph.py", "_engine_run_backward")


def saved_for_backward(replayed: Replay, start: int, end: int) -> set[int]:
    """The blocks from ``start`` on that a backward pass before ``end`` released, by the event that allocated them."""
    freed = replayed.lives.freed
    found: set[int] = set()
    for first, last in backward_passes(replayed, start, end):
        found.update(place for place in range(start, first) if first < freed[place] < last)
    return found


def made_with_grad(replayed: Replay, start: int, end: int) -> set[int] | None:
    """The blocks that were allocated from ``start`` to ``end`` while grad mode was on, by event.

    ``None`` where that was not recorded, as on a card without the native library.
    """
    kinds, grads = replayed.recording.events.kinds, replayed.recording.events.grads
    if grads is None:
        return None
    return {place for place in range(start, end) if grads[place] and kinds[place] == Kind.ALLOC}


def backward_passes(replayed: Replay, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The first and the last allocation of each backward pass, where it has two at least."""
    recording = replayed.recording
    events, stacks = recording.events, recording.stacks
    on_card = recording.device.has_segments
    known: dict[int, bool] = {}
    first = last = -1
    for place in range(start, end):
        if events.kinds[place] != Kind.ALLOC:
            continue
        number = events.stacks[place]
        inside = known.get(number)
        if inside is None:
            inside = known[number] = _is_backward(stacks[number], on_card)
        if inside:
            first, last = (place if first < 0 else first), place
        elif first >= 0:
            if last > first:
                yield first, last
            first = -1
    if first >= 0 and last > first:
        yield first, last


def _is_backward(stack: Stack, on_card: bool) -> bool:
    if not stack.frames:
        return on_card
    return any((frame.file, frame.function) == ENGINE for frame in stack.frames)
