"""How an allocator uses the segments of a pool. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from dataclasses import dataclass

from cudamem_testing.model.sizes import count, format_size

#: A heap by torch's own two numbers.
Pool = tuple[int, int]
MAIN_POOL: Pool = (0, 0)


@dataclass(frozen=True, slots=True)
class PoolUse:
    """One pool in bytes.

    ``allocated`` are live blocks, ``waiting`` blocks that another stream may still use, ``free`` the rest of
    ``reserved``, of which ``split`` cannot be returned to the driver. ``padding`` is what blocks hold beyond the
    requested bytes (a part of ``allocated``). ``stream`` is ``None`` for all streams together.
    """

    pool: Pool
    segments: int
    reserved: int
    allocated: int
    waiting: int
    free: int
    split: int
    largest_free: int
    padding: int
    stream: int | None = None

    @property
    def fragmented(self) -> float:
        """The share of free memory outside the largest free range, from 0 (one range) to 1: docs/snapshots.md."""
        return 0.0 if not self.free else 1 - self.largest_free / self.free

    def __str__(self) -> str:
        name = "main pool" if self.pool == MAIN_POOL else f"private pool {self.pool}"
        name += f", stream {self.stream}" if self.stream is not None else ""
        text = (
            f"{name}: {format_size(self.reserved)} reserved in {count(self.segments, 'segment')}, "
            f"{format_size(self.allocated)} allocated, {format_size(self.free)} unused"
        )
        if self.free:
            text += f" (largest range {format_size(self.largest_free)}, {format_size(self.split)} beside blocks in use)"
        return text if not self.waiting else f"{text}, {format_size(self.waiting)} waiting for a stream"
