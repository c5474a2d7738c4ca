"""A live set by line, bounded, and complete to the byte, as under "live at the peak".

Lines of the project come first, largest first, each with the library call behind it, or if there is none with the
project's line that called it; then library lines; then one row for each other reason: blocks
from before the test, blocks without a stack, bytes that the allocator counted beyond its blocks. The rows of a table
always add up to its total. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.show.printable import elide, one_line
from cudamem_testing.show.tables import Column, Table, begin, elide_path

ROWS = 10
#: The names of blocks from before the window without a known owner: in a test, and in a recording outside of one.
BEFORE_TEST, BEFORE_RECORD = "live before the test", "live before the first recorded event"
_OWNERS = 3
_NUMBERS = (Column("size", "right"), Column("blocks", "right"))
_NARROWEST = 12
_UNBOUNDED = 10_000

Source = Callable[[Frame], str]
#: A call of a library behind a line, or the line that called it.
_Call = tuple[str, Frame | None]
Origin = Literal["project", "library", "rest", "before", "stackless", "rounding"]


@dataclass(frozen=True, slots=True)
class LiveRow:
    """Bytes and blocks under one line of code (``project``, ``library``) or one reason.

    ``library`` is the call behind the line or, if there is none, ``caller`` is the project's line that called it.
    ``more`` counts what the row does not name: further calls, lines (``rest``) or owners (``before``). ``owner`` is who
    left blocks from ``before``, ``reason`` why blocks are ``stackless``, or what those ``before`` are.
    """

    size: int
    blocks: int
    origin: Origin = "project"
    frame: Frame | None = None
    library: str = ""
    caller: Frame | None = None
    more: int = 0
    owner: str | None = None
    reason: str = ""

    @property
    def line(self) -> str:
        """The line of code, or the reason in parentheses."""
        if self.origin == "rest":
            return f"... {count(self.more, 'more line')}"
        if self.origin == "before":
            owner = self.owner if self.owner is not None else f"{self.more} others" if self.more else None
            return f"({self.reason or BEFORE_TEST})" if owner is None else f"(left by {owner})"
        if self.origin == "stackless":
            return f"({self.reason})"
        if self.origin == "rounding":
            return "(counted by the allocator beyond its blocks' sizes)"
        return str(self.frame)

    @property
    def detail(self) -> str:
        """The library call behind the line, or else the project's line that called it (``<- file:line``)."""
        detail = self.library or (f"<- {self.caller.file}:{self.caller.line}" if self.caller is not None else "")
        return f"{detail} and {self.more} more" if detail and self.more else detail


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A live set as rows; ``lines`` are sorted by importance, ``others`` follow them in the text.

    ``start`` is what was allocated when the window began, in bytes, ``None`` if unknown or not applicable.
    ``written`` is the source text of the first line of the project.
    """

    title: str
    total: int
    blocks: int
    lines: tuple[LiveRow, ...]
    others: tuple[LiveRow, ...]
    start: int | None = None
    notes: tuple[str, ...] = ()
    written: str = ""

    @property
    def header(self) -> str:
        """``live at the peak: 612.4 MiB in 148 blocks, start 12.0 MiB``."""
        text = f"{self.title}: {format_size(self.total)} in {count(self.blocks, 'block')}"
        return text if self.start is None else f"{text}, start {format_size(self.start)}"

    def rows(self, most: int = ROWS) -> tuple[LiveRow, ...]:
        """The rows to print: at most ``most`` lines, one row for the rest of them, then the other reasons."""
        kept, rest = self.lines[:most], self.lines[most:]
        if rest:
            size, blocks = sum(row.size for row in rest), sum(row.blocks for row in rest)
            kept += (LiveRow(size, blocks, "rest", more=len(rest)),)
        return kept + self.others

    def cut(self, most: int = ROWS) -> LiveTable:
        """The table limited to the lines that are printed, for a finding."""
        rows = self.rows(most)
        shown = min(most, len(self.lines))
        return replace(self, lines=rows[:shown], others=rows[shown:])

    def text(self, most: int = ROWS, width: int | None = None) -> str:
        """Header and rows, with the source text below the first line of the project."""
        rows = self.rows(most)
        margin, texts = _aligned([row for row in rows if row.origin != "rest"], width)
        aligned = iter(texts)
        lines = [f"   {row.line}: {format_size(row.size)}" if row.origin == "rest" else next(aligned) for row in rows]
        if self.written and rows:
            lines.insert(1, begin(f"{' ' * margin}| {one_line(self.written)}", width or _UNBOUNDED))
        return "\n".join((self.header, *lines))

    def __str__(self) -> str:
        return self.text()


def live_table(
    live: LiveSet,
    title: str = "live at the peak",
    start: int | None = None,
    source: Source | None = None,
    before: str = "",
) -> LiveTable:
    """The table of a live set. Pre-existing blocks are one row, or one for each test that is known to own them.

    ``source`` returns the source text of a line, empty if unknown; ``before`` is what pre-existing blocks are called.
    """
    seen: dict[int, tuple[Frame | None, _Call]] = {}
    lines: dict[Frame, dict[_Call, list[int]]] = {}
    old: dict[str | None, list[int]] = {}
    stackless: list[int] = []
    for block in live.blocks:
        if block.preexisting:
            old.setdefault(block.owner, []).append(block.size)
            continue
        place = seen.get(id(block.stack))
        if place is None:
            place = seen[id(block.stack)] = _place(block.stack)
        frame, call = place
        if frame is None:
            stackless.append(block.size)
        else:
            lines.setdefault(frame, {}).setdefault(call, []).append(block.size)
    rows = [_row(frame, calls) for frame, calls in lines.items()]
    rows.sort(key=lambda row: (row.origin != "project", -row.size))
    others = [*_before(old, before)]
    if stackless:
        others.append(LiveRow(sum(stackless), len(stackless), "stackless", reason=live.stackless))
    if live.rounding:
        others.append(LiveRow(live.rounding, 0, "rounding"))
    first = rows[0].frame if rows and source is not None else None
    written = source(first) if source is not None and first is not None else ""
    return LiveTable(title, live.total, len(live.blocks), tuple(rows), tuple(others), start, live.notes, written)


def live_section(
    live: LiveSet,
    title: str = "live at the peak",
    start: int | None = None,
    most: int = ROWS,
    width: int | None = None,
    source: Source | None = None,
    before: str = "",
) -> str:
    """The table as text."""
    return live_table(live, title, start, source, before).text(most, width)


def by_line(blocks: Iterable[Block]) -> Mapping[tuple[str, str], list[Block]]:
    """Blocks by the line to look at and the library call behind it."""
    seen: dict[int, tuple[str, str]] = {}
    groups: dict[tuple[str, str], list[Block]] = {}
    for block in blocks:
        key = seen.get(id(block.stack))
        if key is None:
            key = seen[id(block.stack)] = (block.stack.line, block.stack.library)
        groups.setdefault(key, []).append(block)
    return groups


def _place(stack: Stack) -> tuple[Frame | None, _Call]:
    if not stack.frames:
        return None, ("", None)
    caller = None if stack.library else stack.called_from
    return stack.where, (stack.library, caller and caller._replace(function=""))


def _row(frame: Frame, calls: Mapping[_Call, list[int]]) -> LiveRow:
    """One line; of several calls behind it, the one with most bytes is named."""
    sizes = [size for found in calls.values() for size in found]
    call = max(calls, key=lambda one: sum(calls[one]))
    library, caller = call
    named = call != ("", None)
    others = len([one for one in calls if one not in (call, ("", None))]) if named else 0
    origin: Origin = "project" if frame.origin == "project" else "library"
    return LiveRow(sum(sizes), len(sizes), origin, frame, library, caller, others)


def _before(old: dict[str | None, list[int]], called: str) -> Iterable[LiveRow]:
    owners = sorted((name for name in old if name is not None), key=lambda name: -sum(old[name]))
    most = _OWNERS if len(owners) > _OWNERS + 1 else len(owners)
    for owner in owners[:most]:
        yield LiveRow(sum(old[owner]), len(old[owner]), "before", owner=owner)
    rest = [size for owner in owners[most:] for size in old[owner]]
    if rest:
        yield LiveRow(sum(rest), len(rest), "before", more=len(owners) - most)
    unknown = old.get(None)
    if unknown:
        yield LiveRow(sum(unknown), len(unknown), "before", reason=called)


def _aligned(rows: list[LiveRow], width: int | None) -> tuple[int, list[str]]:
    """Sizes and counts right-aligned, details aligned; details are shortened first if there is no room.

    Also returns the column where the places begin.
    """
    sizes = tuple((format_size(row.size), _counted(row)) for row in rows)
    prefixes = Table(_NUMBERS, sizes).lines(header=False, indent=3)
    before = max(map(len, prefixes), default=0)
    longest = max((len(row.line) for row in rows if row.detail), default=0)
    room = _UNBOUNDED if width is None else max(_NARROWEST, width - before - 2)
    lines = []
    for prefix, row in zip(prefixes, rows, strict=True):
        place, spare = elide(one_line(row.line), room), room - longest - 5
        detail = elide_path(row.detail, max(spare, 0))
        if detail and len(detail) <= spare:
            place = f"{place.ljust(longest)}     {detail}"
        lines.append(f"{prefix.ljust(before)}  {place}")
    return before + 2, lines


def _counted(row: LiveRow) -> str:
    return "" if row.origin == "rounding" else f" {row.blocks} {'block ' if row.blocks == 1 else 'blocks'}"
