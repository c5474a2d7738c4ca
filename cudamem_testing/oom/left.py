"""What a run left: the blocks that are live now and were not before. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from dataclasses import replace

from cudamem_testing.model.blocks import Block
from cudamem_testing.model.stacks import Locator
from cudamem_testing.recorders.capture import Capture, CpuCapture
from cudamem_testing.snapshots.capture import recording_of
from cudamem_testing.snapshots.replay import replay

_SEQUENCE = 2


def new_blocks(before: Capture, now: Capture, locator: Locator, allocated: frozenset[int] = frozenset()) -> list[Block]:
    """The blocks of the second capture that are not in the first, both without events.

    On a card, where blocks have no number, one that was freed and allocated again with the same size counts as old,
    unless its address is in ``allocated``: what was there before is gone.
    """
    if isinstance(now, CpuCapture) and isinstance(before, CpuCapture):
        last = max((row[_SEQUENCE] for row in before.blocks), default=0)
        old = {row[_SEQUENCE] for row in before.blocks}
        rows = [row for row in now.blocks if row[_SEQUENCE] > last or row[_SEQUENCE] not in old]
        return live_blocks(now._replace(blocks=rows), locator)
    then, after = (replay(recording_of(one, locator)).live_at() for one in (before, now))
    then = replace(then, blocks=tuple(block for block in then.blocks if block.address not in allocated))
    return [*after.minus(then)]


def live_blocks(capture: Capture, locator: Locator) -> list[Block]:
    """The blocks of a capture."""
    return [*replay(recording_of(capture, locator)).live_at()]
