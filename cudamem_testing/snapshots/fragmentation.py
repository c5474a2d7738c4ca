"""Unused memory that the allocator holds, and the largest request that it could serve from it.

Memory of a private pool (of a CUDA graph, or a ``MemPool``) serves only that pool, so it is reported separately and
never counted as free. In the main pool a free range serves requests of its own stream, and small and large requests
have separate segments. A range that fills its segment can be returned to the driver; a split-off remainder cannot,
because its segment is in use. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from cudamem_testing.model.pools import MAIN_POOL, Pool, PoolUse
from cudamem_testing.snapshots.record import LiveBlock, Recording, Segment
from cudamem_testing.snapshots.segments import gaps, inside

_Filled = tuple[Segment, list[LiveBlock]]


@dataclass(frozen=True, slots=True)
class FreeRange:
    """Unused bytes in a segment; ``split`` if the rest of the segment is in use."""

    address: int
    size: int
    stream: int
    pool: Pool
    split: bool


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The main pool, the private pools (largest first), and the free ranges of all (largest first)."""

    main: PoolUse
    private: tuple[PoolUse, ...]
    ranges: tuple[FreeRange, ...]

    @property
    def reserved(self) -> int:
        """Bytes of all pools."""
        return self.main.reserved + sum(pool.reserved for pool in self.private)

    def largest_free(self, stream: int | None = None) -> int:
        """The largest request that the main pool could serve without the driver, on one stream or on any."""
        usable = (part for part in self.ranges if part.pool == MAIN_POOL and stream in (None, part.stream))
        return max((part.size for part in usable), default=0)

    def __str__(self) -> str:
        return "\n".join(map(str, (self.main, *self.private)))


def fragmentation(recording: Recording) -> Fragmentation:
    """How the segments of a recording are used at its end. A recording without segments has an empty main pool."""
    by_pool: dict[Pool, list[_Filled]] = {MAIN_POOL: []}
    for segment, blocks in inside(recording):
        by_pool.setdefault(segment.pool, []).append((segment, blocks))
    ranges = {pool: [part for one in filled for part in _free(*one)] for pool, filled in by_pool.items()}
    uses = [_use(pool, filled, ranges[pool]) for pool, filled in by_pool.items()]
    private = sorted(uses[1:], key=lambda use: -use.reserved)
    largest_first = sorted(chain.from_iterable(ranges.values()), key=lambda part: (-part.size, part.address))
    return Fragmentation(uses[0], tuple(private), tuple(largest_first))


def _free(segment: Segment, blocks: list[LiveBlock]) -> Iterator[FreeRange]:
    for place, size in gaps(segment, blocks):
        yield FreeRange(place, size, segment.stream, segment.pool, size < segment.size)


def _use(pool: Pool, filled: list[_Filled], free: list[FreeRange]) -> PoolUse:
    blocks = [block for _, blocks in filled for block in blocks]
    return PoolUse(
        pool=pool,
        segments=len(filled),
        reserved=sum(segment.size for segment, _ in filled),
        allocated=sum(block.size for block in blocks if not block.awaiting_free),
        waiting=sum(block.size for block in blocks if block.awaiting_free),
        free=sum(part.size for part in free),
        split=sum(part.size for part in free if part.split),
        largest_free=max((part.size for part in free), default=0),
        padding=sum(block.size - block.requested for block in blocks if not block.awaiting_free),
    )
