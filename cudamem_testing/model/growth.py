"""Decides whether a repeated step keeps adding to live memory or reaches a plateau.

Levels are read after every step. Their lower envelope (for each step the lowest level from there to the end) ignores
memory that comes and goes, such as with varying shapes; it rises only by memory that is never freed. A step grows if
the envelope of the second half of the steps still rises more than once: a single rise is a cache that fills up. The
envelope of pure noise rises towards its end as well, so if levels fall at times, the whole range of the second half
must be higher too. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cudamem_testing.model.devices import Device
from cudamem_testing.model.entered import Result
from cudamem_testing.model.sizes import format_size
from cudamem_testing.show.notebook import InNotebook

SHOWN = 5


class Grew(AssertionError):  # noqa: N818 - the name of the verdict
    """A repeated step keeps memory."""


@dataclass(frozen=True, slots=True)
class Growth(Result, InNotebook):
    """What ``steps`` repetitions did on one device.

    ``levels`` are allocated bytes after the warm-up and after each step. ``collected`` is what a garbage collection
    freed after the last step: growth that only waited for it. ``evidence`` shows what grew, by line and holder.
    """

    device: Device
    levels: tuple[int, ...]
    collected: int = 0
    sizes: tuple[tuple[int, int], ...] = ()
    evidence: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Number of measured steps."""
        return len(self.levels) - 1

    @property
    def total(self) -> int:
        """Bytes from the first level to the last; negative if memory was freed."""
        return self.levels[-1] - self.levels[0]

    @property
    def per_step(self) -> int:
        """Bytes that a step of the second half adds permanently; 0 on a plateau."""
        return rise(self.levels)

    @property
    def grows(self) -> bool:
        """Whether the step grows steadily, and not only by garbage that a collection frees."""
        return self.per_step > 0 and self.collected < self.total // 2

    def assert_plateau(self) -> None:
        """Fail if the step keeps growing.

        Raises:
            Grew: with the growth per step, the lines that allocate it and the holders.
        """
        __tracebackhide__ = True
        if self.grows:
            raise Grew(str(self))

    def __str__(self) -> str:
        if not self.grows:
            word = "only garbage that a collection freed" if self.collected and self.per_step else "plateau"
            return f"{word}: {format_size(self.total)} over {self.steps} steps ({self.device})"
        total = f"{format_size(self.total)} over {self.steps} steps"
        lines = [f"cudamem: grows by {format_size(self.per_step)} per step: {total} ({self.device})"]
        lines += [f"   {number} x {format_size(size)}" for size, number in self.sizes[:SHOWN]]
        return "\n".join((*lines, *self.evidence))


def rise(levels: Sequence[int]) -> int:
    """Mean rise of the lower envelope over the second half of the steps, 0 if it is not steady."""
    envelope = list(levels)
    for place in range(len(envelope) - 2, -1, -1):
        envelope[place] = min(envelope[place], envelope[place + 1])
    half = envelope[len(envelope) // 2 :]
    rises = sum(1 for before, after in pairwise(half) if after > before)
    return (half[-1] - half[0]) // (len(half) - 1) if rises > 1 and _drifts(levels) else 0


def _drifts(levels: Sequence[int]) -> bool:
    """Whether levels rise overall: if they fall at times, the lowest and the highest of the second half must be
    above those of the first by a third of their range.
    """
    if all(before <= after for before, after in pairwise(levels)):
        return True
    first, second = levels[: len(levels) // 2], levels[len(levels) // 2 :]
    most = (max(second) - min(second)) // 3
    return min(second) - min(first) > most and max(second) - max(first) > most
