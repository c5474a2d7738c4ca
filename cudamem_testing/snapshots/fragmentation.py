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
    for filled in _inside(recording):
        by_pool.setdefault(filled[0].pool, []).append(filled)
    ranges = {pool: [part for filled in inside for part in _free(*filled)] for pool, inside in by_pool.items()}
    uses = [_use(pool, inside, ranges[pool]) for pool, inside in by_pool.items()]
    private = sorted(uses[1:], key=lambda use: -use.reserved)
    largest_first = sorted(chain.from_iterable(ranges.values()), key=lambda part: (-part.size, part.address))
    return Fragmentation(uses[0], tuple(private), tuple(largest_first))


def _inside(recording: Recording) -> list[_Filled]:
    """Segments by address with their blocks by address; blocks outside any segment are left out."""
    blocks = sorted(recording.blocks, key=lambda block: block.address)
    found: list[_Filled] = []
    at = 0
    for segment in sorted(recording.segments, key=lambda segment: segment.address):
        while at < len(blocks) and blocks[at].address < segment.address:
            at += 1
        first = at
        while at < len(blocks) and blocks[at].address < segment.end:
            at += 1
        found.append((segment, blocks[first:at]))
    return found


def _free(segment: Segment, blocks: list[LiveBlock]) -> Iterator[FreeRange]:
    place = segment.address
    for start, end in (*((block.address, block.address + block.size) for block in blocks), (segment.end, segment.end)):
        if start > place:
            yield FreeRange(place, start - place, segment.stream, segment.pool, start - place < segment.size)
        place = max(place, end)


def _use(pool: Pool, inside: list[_Filled], free: list[FreeRange]) -> PoolUse:
    blocks = [block for _, blocks in inside for block in blocks]
    return PoolUse(
        pool=pool,
        segments=len(inside),
        reserved=sum(segment.size for segment, _ in inside),
        allocated=sum(block.size for block in blocks if not block.awaiting_free),
        waiting=sum(block.size for block in blocks if block.awaiting_free),
        free=sum(part.size for part in free),
        split=sum(part.size for part in free if part.split),
        largest_free=max((part.size for part in free), default=0),
        padding=sum(block.size - block.requested for block in blocks if not block.awaiting_free),
    )
