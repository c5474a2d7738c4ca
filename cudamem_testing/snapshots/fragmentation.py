"""Unused memory that the allocator holds, how far it is in pieces, and the largest request that it could serve.

Memory of a private pool (of a CUDA graph, or a ``MemPool``) serves only that pool, so it is reported separately and
never counted as free. In the main pool a free range serves requests of its own stream, and small and large requests
have separate segments. A range that fills its segment can be returned to the driver; a split-off remainder cannot,
because its segment is in use. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from cudamem_testing.model.pools import MAIN_POOL, Pool, PoolUse
from cudamem_testing.snapshots.record import LiveBlock, Recording, Segment
from cudamem_testing.snapshots.rounding import LARGEST_SMALL, may_use, round_size
from cudamem_testing.snapshots.segments import gaps, inside

_Filled = tuple[Segment, list[LiveBlock]]


@dataclass(frozen=True, slots=True)
class FreeRange:
    """Unused bytes in a segment; ``split`` if the rest of the segment is in use.

    ``small`` is whether the segment is for requests of up to 1 MiB, ``None`` if unknown.
    """

    address: int
    size: int
    stream: int
    pool: Pool
    split: bool
    small: bool | None = None


@dataclass(frozen=True, slots=True)
class Serves:
    """A request against the free ranges that could serve it, in bytes.

    ``needed`` is the block that it becomes, ``largest`` the largest range of its stream, pool and size class that
    ``max_split_size_mb`` lets it use, ``unused`` all unused bytes of those. ``returnable`` are the bytes that
    ``empty_cache()`` would return to the card.
    """

    requested: int
    needed: int
    stream: int
    pool: Pool
    largest: int
    unused: int
    returnable: int

    @property
    def fits(self) -> bool:
        """Whether it needs no memory of the driver."""
        return self.largest >= self.needed


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The main pool, the private pools (largest first), and the free ranges of all (largest first).

    ``streams`` are the same pools once for each stream, if there are several.
    """

    main: PoolUse
    private: tuple[PoolUse, ...]
    ranges: tuple[FreeRange, ...]
    streams: tuple[PoolUse, ...] = field(default=())

    @property
    def reserved(self) -> int:
        """Bytes of all pools."""
        return self.main.reserved + sum(pool.reserved for pool in self.private)

    def largest_free(self, stream: int | None = None) -> int:
        """The largest request that the main pool could serve without the driver, on one stream or on any."""
        usable = (part for part in self.ranges if part.pool == MAIN_POOL and stream in (None, part.stream))
        return max((part.size for part in usable), default=0)

    def serves(self, recording: Recording, requested: int, stream: int = 0, pool: Pool = MAIN_POOL) -> Serves:
        """A request of so many bytes against the free ranges of its stream, pool and size class."""
        needed = round_size(requested, recording.settings)
        small = needed <= LARGEST_SMALL
        mine = (part for part in self.ranges if (part.stream, part.pool) == (stream, pool))
        usable = [part.size for part in mine if part.small in (None, small)]
        usable = [size for size in usable if may_use(size, needed, recording.settings)]
        returnable = sum(part.size for part in self.ranges if part.pool == MAIN_POOL and not part.split)
        return Serves(requested, needed, stream, pool, max(usable, default=0), sum(usable), returnable)

    def __str__(self) -> str:
        return "\n".join(map(str, (self.main, *self.private)))


def fragmentation(recording: Recording) -> Fragmentation:
    """How the segments of a recording are used at its end. A recording without segments has an empty main pool."""
    by_pool: dict[Pool, list[_Filled]] = {MAIN_POOL: []}
    by_stream: dict[tuple[Pool, int], list[_Filled]] = {}
    for segment, blocks in inside(recording):
        by_pool.setdefault(segment.pool, []).append((segment, blocks))
        by_stream.setdefault((segment.pool, segment.stream), []).append((segment, blocks))
    uses = [_use(pool, filled) for pool, filled in by_pool.items()]
    streams = [_use(pool, filled, stream) for (pool, stream), filled in sorted(by_stream.items())]
    private = sorted(uses[1:], key=lambda use: -use.reserved)
    ranges = chain.from_iterable(_ranges(filled) for filled in by_pool.values())
    largest_first = sorted(ranges, key=lambda part: (-part.size, part.address))
    several = len({stream for _, stream in by_stream}) > 1
    return Fragmentation(uses[0], tuple(private), tuple(largest_first), tuple(streams) if several else ())


def _ranges(filled: Iterable[_Filled]) -> Iterator[FreeRange]:
    for segment, blocks in filled:
        for place, size in gaps(segment, blocks):
            yield FreeRange(place, size, segment.stream, segment.pool, size < segment.size, segment.small)


def _use(pool: Pool, filled: list[_Filled], stream: int | None = None) -> PoolUse:
    blocks = [block for _, blocks in filled for block in blocks]
    free = [*_ranges(filled)]
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
        stream=stream,
    )
