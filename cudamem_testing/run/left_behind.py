"""What a failed run left allocated: blocks that nothing explains, and who holds them. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from cudamem_testing.guards import collect_garbage, collect_young_garbage
from cudamem_testing.model.findings import Finding, Severity, Verdict
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.stacks import Stack
from cudamem_testing.objects.places import KnownPlaces
from cudamem_testing.oom.left import live_blocks, new_blocks
from cudamem_testing.originals import Original
from cudamem_testing.run.holders import BlockHolders
from cudamem_testing.torch_api.ambient import drain_backward_queue
from cudamem_testing.verdicts.leaks import leak_findings

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.stacks import Locator
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.recorders.capture import Capture

#: The module that runs the step: frames from there on are not the step's.
RUNS = "cudamem_testing/run/sweep.py"
#: How long threads of autograd may take to drop what a failed backward pass left.
THREADS_SECONDS = 0.1
#: Who may keep a block without a fault of the step.
_EXCUSED = (Verdict.COMPILER_CACHE, Verdict.WORKSPACE)

Live = Mapping["Recorder", "Capture | None"]


class LeftBehind:
    """Compares what is live on all devices before and after a run of a step.

    ``named`` gives the addresses of state that may be replaced, ``beside`` are objects that may hold what is left.
    """

    def __init__(
        self,
        recorders: Sequence[Recorder],
        locator: Locator,
        named: Callable[[], frozenset[int]],
        beside: Iterable[object],
    ) -> None:
        self._recorders, self._locator, self._named, self._beside = recorders, locator, named, tuple(beside)
        self._usual: Counter[tuple[Stack, int]] = Counter()
        self._places = KnownPlaces()
        self._queued = self._queues = 0

    def look(self) -> Live:
        """What is live now."""
        for recorder in self._recorders:
            recorder.finish()
        return {one: one.live() for one in self._recorders}

    def allow(self, before: Live, allocated: frozenset[int] = frozenset()) -> None:
        """What a complete run has left since a look is what any run may leave.

        ``allocated`` are the addresses that it allocated. Blocks of a card have no number, so one that a run replaces
        at the same address, such as a gradient, is not new to a look; but another run may put it elsewhere.
        """
        self._usual = Counter((inner(block.stack), block.size) for block in self._new(before, allocated))

    def unexplained(self, before: Live) -> list[Block]:
        """New blocks that are no named state, and that a complete run does not leave."""
        new = self._new(before)
        if not new:
            return []
        named, usual = self._named(), self._usual.copy()
        found = []
        for block in new:
            key = inner(block.stack), block.size
            if block.address in named:
                continue
            if usual[key] > 0:
                usual[key] -= 1
            else:
                found.append(replace(block, stack=inner(block.stack)))
        return found

    def judge(self, left: Sequence[Block]) -> tuple[list[Finding], list[Block]]:
        """Findings for blocks that a failed run left, and the blocks that only a collection freed."""
        if left:
            drain_backward_queue()
            there, left = left, self.still_live(left)
            end = Original.monotonic() + THREADS_SECONDS
            while any(block.device.is_card for block in left) and Original.monotonic() < end:
                Original.sleep(0.005)  # autograd's thread of a card has not released it yet
                left = self.still_live(left)
            queued = sum(block.size for block in there) - sum(block.size for block in left)
            self._queued = max(self._queued, queued)
            self._queues += queued > 0
        remaining = left
        for collect in (collect_young_garbage, collect_garbage):
            if not remaining:
                break
            collect()
            remaining = self.still_live(remaining)
        still = {*map(_identity, remaining)}
        cycled = [block for block in left if _identity(block) not in still]
        found: list[Finding] = []
        for recorder in self._recorders:
            blocks = [block for block in remaining if block.device == recorder.device]
            if blocks:
                holders = BlockHolders(self._places, self._beside)
                holders.are_known({recorder.device: blocks})  # quick, and often enough
                found += leak_findings(blocks, holders.of(recorder.device, blocks), Severity.NOTE)
        return [one for one in found if one.verdict not in _EXCUSED], cycled

    def still_live(self, blocks: Sequence[Block]) -> list[Block]:
        """Those of some blocks that are live now."""
        live: set[object] = set()
        for recorder in self._recorders:
            recorder.finish()
            capture = recorder.live()
            if capture is not None:
                live.update(_identity(block) for block in live_blocks(capture, self._locator))
        return [block for block in blocks if _identity(block) in live]

    def notes(self) -> list[str]:
        """What torch left, which is no fault of the step."""
        if not self._queues:
            return []
        many = f"{self._queues} failed backward passes" if self._queues > 1 else "1 failed backward pass"
        size = format_size(self._queued)
        return [f"{many} left up to {size} in autograd's queue until the next one: not the step's fault"]

    def _new(self, before: Live, allocated: frozenset[int] = frozenset()) -> list[Block]:
        """The blocks that are live and were not."""
        found: list[Block] = []
        for recorder, then in before.items():
            recorder.finish()
            now = recorder.live()
            if then is not None and now is not None:
                found += new_blocks(then, now, self._locator, allocated)
        return found


def _identity(block: Block) -> object:
    """What identifies a block: on a card, where blocks have no number, also who allocated it."""
    return block.order or (block.device, block.address, block.size, inner(block.stack))


def inner(stack: Stack) -> Stack:
    """The frames of the step, without those that run it."""
    return Stack(tuple(takewhile(lambda frame: frame.file != RUNS, stack.frames)))
