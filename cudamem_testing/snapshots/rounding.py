"""Computes the size of the block that CUDA's caching allocator creates for a request.

Requests are rounded up to 512 bytes, or between powers of two to the divisions that ``roundup_power2_divisions`` sets.
A larger free block is split, and the remainder stays free, unless it would be small: blocks of the pool
for large requests (above 1 MiB) keep a remainder of up to 1 MiB, unless segments are expandable. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from array import array

from cudamem_testing.snapshots.record import Settings

SMALLEST = 512
LARGEST_SMALL = 2**20  # rounded requests up to here come from the pool for small requests
#: With ``max_split_size_mb``, a large block may be larger than a request by less than this (20 MiB by default).
_MOST_UNSPLIT = 20 * 2**20
_FIRST_POWER = 20  # the divisions start at 1 MiB


def round_size(requested: int, settings: Settings) -> int:
    """Bytes of the block for a request, without an unsplit remainder."""
    if requested < SMALLEST:
        return SMALLEST
    divisions = _divisions(requested, settings)
    if divisions > 1 and requested > SMALLEST * divisions:
        return _next_division(requested, divisions)
    return -(-requested // SMALLEST) * SMALLEST


def round_sizes(requested: array[int], settings: Settings) -> array[int]:
    """Bytes of many blocks."""
    if settings.roundup:
        known = {size: round_size(size, settings) for size in {*requested}}
        return array("q", list(map(known.__getitem__, requested)))
    return _rounded(requested)


def _rounded(requested: array[int]) -> array[int]:
    """Multiples of 512: all sizes are added to and cut off at once, as digits of one long number.

    Sums of sizes are below 2**60, so no digit of 64 bits overflows.
    """
    number = int.from_bytes(requested.tobytes(), sys.byteorder)
    more, kept = (array("q", [one]) * len(requested) for one in (SMALLEST - 1, -SMALLEST))
    number += int.from_bytes(more.tobytes(), sys.byteorder)
    number &= int.from_bytes(kept.tobytes(), sys.byteorder)
    found = array("q", number.to_bytes(8 * len(requested), sys.byteorder))
    if 0 in found:
        found = array("q", [size or SMALLEST for size in found])
    return found


def splits(free: int, size: int, settings: Settings) -> bool:
    """Whether the remainder of a free block of ``free`` bytes is split off from a block of ``size`` bytes."""
    if size <= LARGEST_SMALL or settings.expandable:
        return free - size >= SMALLEST
    limit = settings.max_split_size
    return free - size > LARGEST_SMALL and (limit is None or size < limit)


def may_use(free: int, size: int, settings: Settings) -> bool:
    """Whether a block of ``size`` bytes may be cut from a free one of ``free`` bytes, or less.

    With ``max_split_size_mb`` a block of that size or more is not split: it serves requests of about its size only.
    """
    limit = settings.max_split_size
    return limit is None or (free < limit if size < limit else free < size + _MOST_UNSPLIT)


def always_exact(size: int, settings: Settings) -> bool:
    """Whether a block of this rounded size never keeps a remainder."""
    return size <= LARGEST_SMALL or settings.expandable


def _divisions(size: int, settings: Settings) -> int:
    if not settings.roundup:
        return 0
    place = max(0, size.bit_length() - 1 - _FIRST_POWER)
    return settings.roundup[min(place, len(settings.roundup) - 1)]


def _next_division(size: int, divisions: int) -> int:
    floor = 1 << (size.bit_length() - 1)
    if floor == size:
        return size
    step = floor >> (divisions.bit_length() - 1)
    if step == 0:
        return floor << 1
    return -(-size // step) * step
