"""Churn: blocks that are allocated and freed again at once, over and over. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from dataclasses import dataclass

from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.show.notebook import InNotebook
from cudamem_testing.show.tables import Column, Table

#: A block is freed at once if its device made at most so many other allocations meanwhile; and a line is in a loop if
#: that happened to so many of its blocks.
SOON, LOOP = 16, 10
ROWS = 10
_COLUMNS = (Column("blocks", "right"), Column("bytes", "right"), Column("at once"), Column("line"), Column("by"))


@dataclass(frozen=True, slots=True)
class Allocating:
    """What one line allocated in a window: ``blocks`` of ``bytes`` together, of which ``soon`` were freed at once.

    ``largest`` is the largest of those in bytes, ``library`` the library's call behind the line.
    """

    line: str
    library: str
    blocks: int
    bytes: int
    soon: int
    largest: int


@dataclass(frozen=True, slots=True)
class Churn(InNotebook):
    """The allocations of a window by line, most blocks first; ``notes`` say what may be missing."""

    device: Device
    lines: tuple[Allocating, ...]
    notes: tuple[str, ...] = ()

    @property
    def blocks(self) -> int:
        """All blocks that were allocated."""
        return sum(one.blocks for one in self.lines)

    @property
    def rows(self) -> tuple[Allocating, ...]:
        """The lines that allocate and free again in a loop, most such blocks first."""
        return tuple(sorted((one for one in self.lines if one.soon >= LOOP), key=lambda one: (-one.soon, -one.bytes)))

    def text(self, most: int = ROWS) -> str:
        """The lines with churn."""
        rows = self.rows
        again = sum(one.soon for one in rows)
        were = "was" if self.blocks == 1 else "were"
        title = f"{again} of {count(self.blocks, 'allocation')} on {self.device} {were} freed again at once, in a loop"
        table = Table(_COLUMNS[:2] + _COLUMNS[3:], tuple(_cells(one, one.soon) for one in rows[:most]))
        more = [f"   ... {count(len(rows) - most, 'more line')}"] if len(rows) > most else []
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join((title, *table.lines(header=False, indent=3), *more, *notes))

    def allocated(self, most: int = ROWS) -> tuple[str, ...]:
        """All lines by the number of their blocks, below ``allocations, by line``."""
        shown, rest = self.lines[:most], self.lines[most:]
        columns: tuple[Column, ...] = _COLUMNS[:2] + _COLUMNS[3:]
        cells = [_cells(one, one.blocks) for one in shown]
        if any(one.soon >= LOOP for one in shown):
            columns = _COLUMNS
            soon = [f"{one.soon} freed at once" if one.soon >= LOOP else "" for one in shown]
            cells = [(*row[:2], words, *row[2:]) for row, words in zip(cells, soon, strict=True)]
        more = [f"   ... {count(len(rest), 'more line')}: {sum(one.blocks for one in rest)}"] if rest else []
        return ("allocations, by line", *Table(columns, tuple(cells)).lines(header=False, indent=3), *more)

    def __str__(self) -> str:
        return self.text()


def _cells(one: Allocating, blocks: int) -> tuple[str, ...]:
    return count(blocks, "block"), format_size(one.bytes), one.line, one.library
