"""Compares two moments: what is new, what is gone, and which lines grew.

Blocks of one recording are identified by their order of allocation. Two CUDA recordings have no such number in
common, so there a block is the same if address and size are equal, unless the later recording saw its allocation after
the earlier one was taken. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.live_tables import BEFORE_RECORD, ROWS, by_line, live_table
from cudamem_testing.model.sizes import count, format_size, signed
from cudamem_testing.show.notebook import InNotebook
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.snapshots.record import Recording
from cudamem_testing.snapshots.replay import live_at_end

_ASSUMED = (
    "as unchanged, by address and size: the later history begins after the earlier snapshot, "
    "so blocks that were freed and allocated again between them are not seen"
)
_COLUMNS = (Column("growth", "right"), Column("bytes"), Column("blocks"), Column("allocated", elastic=True))


@dataclass(frozen=True, slots=True)
class Grown:
    """A line that holds more bytes than before."""

    line: str
    library: str
    before: int
    after: int
    blocks_before: int
    blocks_after: int

    @property
    def growth(self) -> int:
        """Bytes more than before."""
        return self.after - self.before

    def __str__(self) -> str:
        blocks = f"{self.blocks_before} -> {count(self.blocks_after, 'block')}"
        return f"{format_size(self.growth)} more, {blocks}  {self.line}"


@dataclass(frozen=True, slots=True)
class Difference(InNotebook):
    """``new`` blocks, blocks that are ``gone``, and the lines that ``grew``, largest growth first.

    ``notes`` say what may be missing or wrong; those of one side alone begin with ``earlier:`` or ``later:``.
    """

    new: LiveSet
    gone: LiveSet
    grown: tuple[Grown, ...]
    notes: tuple[str, ...] = ()

    @property
    def growth(self) -> int:
        """Bytes more than before; negative if less is live."""
        return self.new.total - self.gone.total

    def text(self, most: int = ROWS) -> str:
        """A header, the lines that grew, what is new and gone by line, and the notes."""
        lines = [f"{signed(self.growth)} on {self.new.device}: {_sum(self.new)} new, {_sum(self.gone)} gone"]
        if self.grown:
            cells = tuple((f"+{format_size(one.growth)}", _sizes(one), _counts(one), one.line) for one in self.grown)
            lines.append("grown")
            lines += Table(_COLUMNS, cells[:most]).lines(header=False, indent=3)
            if len(self.grown) > most:
                rest = sum(one.growth for one in self.grown[most:])
                lines.append(f"   ... {count(len(self.grown) - most, 'more line')}: +{format_size(rest)}")
        lines += [
            live_table(part, title, before=BEFORE_RECORD).text(most)
            for part, title in ((self.new, "new"), (self.gone, "gone"))
            if len(part)
        ]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def difference(before: LiveSet, after: LiveSet) -> Difference:
    """Compare two moments of one recording, or of recordings that number blocks alike (those of the CPU)."""
    return _difference(before, after, after.minus(before), before.minus(after))


def compare(before: Recording, after: Recording) -> Difference:
    """Compare the ends of two recordings of one device, taken in this order."""
    first, second = live_at_end(before), live_at_end(after)
    if not before.device.has_segments:
        return difference(first, second)
    taken = before.events.times[-1] if before.events.times else None
    held = Counter(map(_place, first.blocks))
    new: list[Block] = []
    assumed = 0
    covered = _covers(after, taken)
    for block in second.blocks:
        if held[_place(block)] and not _made_after(after, block, taken):
            held[_place(block)] -= 1
            assumed += block.preexisting and not covered
        else:
            new.append(block)
    gone = [block for block in reversed(first.blocks) if _claim(held, _place(block))]
    notes = (f"{count(assumed, 'block')} {'counts' if assumed == 1 else 'count'} {_ASSUMED}",) if assumed else ()
    return _difference(first, second, _part(second, new), _part(first, reversed(gone)), notes)


def _difference(
    before: LiveSet, after: LiveSet, new: LiveSet, gone: LiveSet, notes: tuple[str, ...] = ()
) -> Difference:
    was, now = by_line(before.blocks), by_line(after.blocks)
    grown = []
    for key, blocks in now.items():
        old = was.get(key, [])
        sizes = sum(block.size for block in old), sum(block.size for block in blocks)
        if sizes[1] > sizes[0]:
            grown.append(Grown(*key, *sizes, len(old), len(blocks)))
    grown.sort(key=lambda one: -one.growth)
    return Difference(new, gone, tuple(grown), (*notes, *_notes(before.notes, after.notes)))


def _notes(earlier: tuple[str, ...], later: tuple[str, ...]) -> Iterator[str]:
    both = {*earlier} & {*later}
    yield from (note if note in both else f"earlier: {note}" for note in earlier)
    yield from (f"later: {note}" for note in later if note not in both)


def _place(block: Block) -> tuple[int | None, int]:
    return block.address, block.size


def _claim(held: Counter[tuple[int | None, int]], place: tuple[int | None, int]) -> bool:
    if not held[place]:
        return False
    held[place] -= 1
    return True


def _covers(later: Recording, taken: int | None) -> bool:
    """Whether a recording has all events since an earlier one ended, so that no block was exchanged unseen."""
    times = later.events.times
    return times is not None and len(times) > 0 and taken is not None and times[0] <= taken


def _made_after(recording: Recording, block: Block, taken: int | None) -> bool:
    """Whether a block was allocated after the earlier recording ended, according to the clock."""
    times = recording.events.times
    if block.preexisting or block.order is None or times is None or taken is None:
        return False
    return times[block.order - recording.first] > taken


def _part(whole: LiveSet, blocks: Iterable[Block]) -> LiveSet:
    return LiveSet(whole.device, tuple(blocks), 0, whole.notes, whole.stackless)


def _sum(live: LiveSet) -> str:
    return f"{format_size(live.total)} in {count(len(live), 'block')}"


def _sizes(one: Grown) -> str:
    return f"{format_size(one.before)} -> {format_size(one.after)}"


def _counts(one: Grown) -> str:
    return f"{one.blocks_before} -> {count(one.blocks_after, 'block')}"
