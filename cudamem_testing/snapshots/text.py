"""The section "live at the peak": a live set by line, bounded, and complete to the byte.

Lines of the project come first, largest first, each with the library call behind it, or where there is none with the
project's line that called; then lines known by a library only; then one row for what each other reason explains: blocks
from before the test, blocks without a stack, bytes that the allocator counted beyond its blocks. The rows of a table
always add up to its total. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.show.printable import elide, one_line
from cudamem_testing.show.tables import Column, Table, begin, elide_path

ROWS = 10
_OWNERS = 3
_NUMBERS = (Column("size", "right"), Column("blocks", "right"))
_NARROWEST = 12
_UNBOUNDED = 10_000

Source = Callable[[Frame], str]


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes and blocks under one line of code or one reason.

    ``detail`` is the library call behind the line, or else the project's line that called it (``<- file:line``).
    """

    size: int
    blocks: int
    line: str
    detail: str = ""
    origin: str = "project"
    frame: Frame | None = None


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A live set as rows; ``lines`` are sorted by importance and all there, ``others`` follow them in the text.

    ``start`` is what was allocated when the window began, in bytes, ``None`` where that is not known or not meant.
    """

    title: str
    total: int
    blocks: int
    lines: tuple[Row, ...]
    others: tuple[Row, ...]
    start: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def header(self) -> str:
        """``live at the peak: 612.4 MiB in 148 blocks, start 12.0 MiB``."""
        text = f"{self.title}: {format_size(self.total)} in {count(self.blocks, 'block')}"
        return text if self.start is None else f"{text}, start {format_size(self.start)}"

    def rows(self, most: int = ROWS) -> tuple[Row, ...]:
        """The rows to print: at most ``most`` lines, one row for the rest of them, then the other reasons."""
        kept, rest = self.lines[:most], self.lines[most:]
        if rest:
            size, blocks = sum(row.size for row in rest), sum(row.blocks for row in rest)
            kept += (Row(size, blocks, f"... {count(len(rest), 'more line')}", origin="rest"),)
        return kept + self.others

    def text(self, most: int = ROWS, width: int | None = None, source: Source | None = None) -> str:
        """Header and rows; where ``source`` knows it, below the first line of the project what is written there."""
        rows = self.rows(most)
        aligned = iter(_aligned([row for row in rows if row.origin != "rest"], width))
        lines = [f"   {row.line}: {format_size(row.size)}" if row.origin == "rest" else next(aligned) for row in rows]
        first = rows[0].frame if rows else None
        written = source(first) if source is not None and first is not None else ""
        if written:
            margin = " " * lines[0].index(rows[0].line)
            lines.insert(1, begin(f"{margin}| {written}", width or _UNBOUNDED))
        return "\n".join((self.header, *lines))

    def __str__(self) -> str:
        return self.text()


def live_table(live: LiveSet, title: str = "live at the peak", start: int | None = None) -> LiveTable:
    """The table of a live set. Pre-existing blocks are one row, or one for each test that is known to own them."""
    seen: dict[int, tuple[str, str, Frame | None]] = {}
    lines: dict[tuple[str, Frame | None], dict[str, list[int]]] = {}
    old: dict[str | None, list[int]] = {}
    stackless: list[int] = []
    for block in live.blocks:
        if block.preexisting:
            old.setdefault(block.owner, []).append(block.size)
            continue
        place = seen.get(id(block.stack))
        if place is None:
            place = seen[id(block.stack)] = _place(block.stack)
        line, detail, frame = place
        if not line:
            stackless.append(block.size)
        else:
            lines.setdefault((line, frame), {}).setdefault(detail, []).append(block.size)
    rows = [_row(line, frame, details) for (line, frame), details in lines.items()]
    rows.sort(key=lambda row: (row.origin != "project", -row.size))
    others = [*_before(old)]
    if stackless:
        others.append(Row(sum(stackless), len(stackless), f"({live.stackless})", origin="stackless"))
    if live.rounding:
        others.append(Row(live.rounding, 0, "(counted by the allocator beyond its blocks' sizes)", origin="rounding"))
    return LiveTable(title, live.total, len(live.blocks), tuple(rows), tuple(others), start, live.notes)


def live_section(
    live: LiveSet,
    title: str = "live at the peak",
    start: int | None = None,
    most: int = ROWS,
    width: int | None = None,
    source: Source | None = None,
) -> str:
    """The table as text."""
    return live_table(live, title, start).text(most, width, source)


def by_line(blocks: Iterable[Block]) -> Mapping[tuple[str, str], list[Block]]:
    """Blocks by the line where to look and the library call behind it."""
    seen: dict[int, tuple[str, str]] = {}
    groups: dict[tuple[str, str], list[Block]] = {}
    for block in blocks:
        key = seen.get(id(block.stack))
        if key is None:
            key = seen[id(block.stack)] = (block.stack.line, block.stack.library)
        groups.setdefault(key, []).append(block)
    return groups


def _place(stack: Stack) -> tuple[str, str, Frame | None]:
    if not stack.frames:
        return "", "", None
    detail, caller = stack.library, stack.called_from
    if not detail and caller is not None:
        detail = f"<- {caller.file}:{caller.line}"
    return stack.line, detail, stack.project_frame


def _row(line: str, frame: Frame | None, details: dict[str, list[int]]) -> Row:
    """One line; of several details behind it, that of most bytes is named."""
    sizes = [size for found in details.values() for size in found]
    detail = max(details, key=lambda name: sum(details[name]))
    others = len([name for name in details if name and name != detail])
    if detail and others:
        detail += f" and {others} more"
    return Row(sum(sizes), len(sizes), line, detail, "library" if frame is None else "project", frame)


def _before(old: dict[str | None, list[int]]) -> Iterable[Row]:
    owners = sorted((name for name in old if name is not None), key=lambda name: -sum(old[name]))
    most = _OWNERS if len(owners) > _OWNERS + 1 else len(owners)
    for owner in owners[:most]:
        yield Row(sum(old[owner]), len(old[owner]), f"(left by {owner})", origin="before")
    rest = [size for owner in owners[most:] for size in old[owner]]
    if rest:
        yield Row(sum(rest), len(rest), f"(left by {len(owners) - most} others)", origin="before")
    unknown = old.get(None)
    if unknown:
        yield Row(sum(unknown), len(unknown), "(live before the test)", origin="before")


def _aligned(rows: list[Row], width: int | None) -> list[str]:
    """Sizes and counts right-aligned, details under each other; these give way first when room is short."""
    sizes = tuple((format_size(row.size), _counted(row)) for row in rows)
    prefixes = Table(_NUMBERS, sizes).lines(header=False, indent=3)
    before = max(map(len, prefixes), default=0)
    longest = max((len(row.line) for row in rows if row.detail), default=0)
    room = _UNBOUNDED if width is None else max(_NARROWEST, width - before - 2)
    lines = []
    for prefix, row in zip(prefixes, rows, strict=True):
        place, spare = elide(one_line(row.line), room), room - longest - 5
        if row.detail and spare >= _NARROWEST:
            place = f"{place.ljust(longest)}     {elide_path(row.detail, spare)}"
        lines.append(f"{prefix.ljust(before)}  {place}")
    return lines


def _counted(row: Row) -> str:
    return "" if row.origin == "rounding" else f" {row.blocks} {'block ' if row.blocks == 1 else 'blocks'}"
