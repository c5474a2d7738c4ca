"""Segments one by one: what of each is in use, by what, and what lies unused beside it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cudamem_testing.snapshots.record import LiveBlock, Recording, Segment


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """One segment in bytes: ``used`` by ``blocks`` blocks, ``largest_free`` its largest unused range.

    ``line`` is the line that holds most of it; empty if nothing is live in it.
    """

    segment: Segment
    used: int
    blocks: int
    largest_free: int
    line: str

    @property
    def split(self) -> int:
        """Unused bytes that cannot be returned to the driver, because blocks in the segment are live."""
        return self.segment.size - self.used if self.blocks else 0


def inside(recording: Recording) -> Iterator[tuple[Segment, list[LiveBlock]]]:
    """Segments by address with their blocks by address; blocks outside any segment are left out."""
    blocks = sorted(recording.blocks, key=lambda block: block.address)
    at = 0
    for segment in sorted(recording.segments, key=lambda segment: segment.address):
        while at < len(blocks) and blocks[at].address < segment.address:
            at += 1
        first = at
        while at < len(blocks) and blocks[at].address < segment.end:
            at += 1
        yield segment, blocks[first:at]


def gaps(segment: Segment, blocks: list[LiveBlock]) -> Iterator[tuple[int, int]]:
    """Address and size of the unused ranges of a segment, given its blocks by address."""
    place = segment.address
    for start, end in (*((block.address, block.address + block.size) for block in blocks), (segment.end, segment.end)):
        if start > place:
            yield place, start - place
        place = max(place, end)


def segment_uses(recording: Recording) -> list[SegmentUse]:
    """All segments at the end of a recording, those with most unused bytes beside live blocks first."""
    found = [_use(recording, segment, blocks) for segment, blocks in inside(recording)]
    return sorted(found, key=lambda one: (-one.split, one.segment.address))


def _use(recording: Recording, segment: Segment, blocks: list[LiveBlock]) -> SegmentUse:
    free = [size for _, size in gaps(segment, blocks)]
    by_stack: dict[int, int] = {}
    for block in blocks:
        by_stack[block.stack] = by_stack.get(block.stack, 0) + block.size
    largest = max(by_stack, key=by_stack.__getitem__, default=None)
    line = "" if largest is None else recording.stacks[largest].line
    return SegmentUse(segment, segment.size - sum(free), len(blocks), max(free, default=0), line)


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of a segment: its bytes, the number of the segment, and the line that holds it.

    ``line`` is ``FREE`` for unused bytes beside live blocks, ``RETURNABLE`` for a segment in which nothing is live.
    """

    FREE: ClassVar[str] = ""
    RETURNABLE: ClassVar[str] = "\0"

    size: int
    segment: int
    line: str


#: A map has about so many pieces at most: smaller ranges are joined with their neighbours.
MOST_PIECES = 6_000


def pieces(recording: Recording) -> Iterator[Piece]:
    """The segments by address as ranges; neighbours of one line are one, and so are neighbours that are very small."""
    total = sum(segment.size for segment in recording.segments)
    least = total // MOST_PIECES
    for number, (segment, blocks) in enumerate(inside(recording)):
        held = [(block.address, block.size, recording.stacks[block.stack].line) for block in blocks]
        unused = Piece.FREE if blocks else Piece.RETURNABLE
        ranges = sorted([*held, *((address, size, unused) for address, size in gaps(segment, blocks))])
        size, lines = 0, Counter[str]()
        for _, more, line in ranges:
            if size and lines.keys() != {line} and min(size, more) >= least:
                yield Piece(size, number, lines.most_common(1)[0][0])
                size, lines = 0, Counter()
            size += more
            lines[line] += more
        if size:
            yield Piece(size, number, lines.most_common(1)[0][0])
