"""Tables of operator rows, in an order that is the same in every run of a program.

Sizes are shown in binary units with one decimal; ``-`` is nothing (or less than ``min_bytes``), ``?`` unknown. Levels,
such as peaks, are above the start of the recording, so they do not depend on what ran before. Operators
and the changes between them add up to the last line. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cudamem_testing.model.sizes import format_size
from cudamem_testing.operators.rows import BETWEEN, OUTSIDE_MODEL, OperatorRow, Phase
from cudamem_testing.show.tables import Column, Table

COLUMNS = ("operators", "allocated", "freed", "forward kept", "backward kept", "temporary", "peak")
"""What the tree of modules shows of each of them."""
STABLE = tuple(column for column in COLUMNS if column not in ("operators", "temporary"))
"""Those that do not move from one version of torch to the next: how many operators do the work, and what they need."""
MODEL, OUTSIDE, OTHERS, TOTAL = "(model)", "(no module)", "(others)", "total"
Starts = Mapping[str, int]
"""Allocated bytes of each device when the recording began."""


@dataclass(slots=True)
class Sum:
    """Sums of some rows; ``None`` if unknown in a row."""

    operators: int = 0
    allocated: int = 0
    freed: int = 0
    forward: int = 0
    backward: int = 0
    temporary: int | None = 0
    peak: int | None = None
    known: bool = True

    def add(self, row: OperatorRow, start: int) -> None:
        """Count a row; peaks become levels above ``start``."""
        self.operators += row.operator != BETWEEN
        self.allocated += row.allocated
        self.freed += row.freed
        self.forward += row.kept if row.phase is Phase.FORWARD else 0
        self.backward += row.kept if row.phase is Phase.BACKWARD else 0
        if row.peak is None or row.temporary is None:
            self.known, self.temporary, self.peak = False, None, None
        elif self.known:
            self.temporary = max(self.temporary or 0, row.temporary)
            self.peak = max(row.peak - start, row.peak - start if self.peak is None else self.peak)

    @property
    def kept(self) -> int:
        """Bytes allocated and not freed."""
        return self.allocated - self.freed

    @property
    def highest(self) -> int | None:
        """The peak; 0 without any row."""
        return self.peak or 0 if self.known else None


def summary(rows: Sequence[OperatorRow], starts: Starts, top: int, min_bytes: int) -> Table:
    """The operator calls that allocated most, the largest first."""
    calls = [row for row in rows if row.operator != BETWEEN]
    largest = sorted(calls, key=lambda row: (-row.allocated, row.call, row.device))
    shown = [row for row in largest[:top] if row.allocated >= max(min_bytes, 1)]
    cells = _Cells(starts, min_bytes)
    lines = [
        cells.line(
            row.device,
            (str(row.call), row.operator, module_text(row.module), row.phase.value),
            (row.allocated, row.freed, row.temporary, row.after - starts[row.device]),
        )
        for row in shown
    ]
    listed = {(row.call, row.device) for row in shown}
    rest = [row for row in calls if (row.call, row.device) not in listed]
    for label, part in (
        (OTHERS, [] if min_bytes else rest),
        (BETWEEN, [row for row in rows if row.operator == BETWEEN]),
        (TOTAL, rows),
    ):
        for device, total in _by_device(part, starts).items():
            lines.append(
                cells.line(device, ("", label, "", ""), (total.allocated, total.freed, total.temporary, total.kept))
            )
    columns = (_right("call"), Column("operator"), Column("module", elastic=True), Column("phase"))
    return cells.table(columns, ("allocated", "freed", "temporary", "after"), lines)


def by_operator(rows: Sequence[OperatorRow], starts: Starts, min_bytes: int) -> Table:
    """Calls grouped by operator, the largest allocations first; calls without memory form one row."""
    groups = _grouped(rows, starts, lambda row: row.operator if row.allocated or row.freed else OTHERS)
    last = {OTHERS: 1, BETWEEN: 2}
    order = sorted(groups, key=lambda key: (last.get(key[1], 0), -groups[key].allocated, key[1], key[0]))
    return _totalled("operator", ((key, groups[key]) for key in order), rows, starts, min_bytes)


def by_phase(rows: Sequence[OperatorRow], starts: Starts, min_bytes: int) -> Table:
    """Phases, with the changes between their operators."""
    groups = _grouped(rows, starts, lambda row: row.phase.value)
    order = [phase.value for phase in Phase]
    keys = sorted(groups, key=lambda key: (order.index(key[1]), key[0]))
    return _totalled("phase", ((key, groups[key]) for key in keys), rows, starts, min_bytes)


def by_module(
    rows: Sequence[OperatorRow], starts: Starts, depth: int | None, min_bytes: int, columns: Sequence[str] = COLUMNS
) -> Table:
    """The tree of modules down to ``depth`` below the model, each including its submodules, in order of first use."""
    cells, lines = _Cells(starts, min_bytes), []
    titles = [name for name in COLUMNS[1:] if name in columns]
    for device in starts:
        tree = _Tree()
        rest: dict[str, Sum] = {}
        total = Sum()
        for row in rows:
            if row.device != device:
                continue
            total.add(row, starts[device])
            if row.module is None:
                rest.setdefault(BETWEEN if row.operator == BETWEEN else OUTSIDE, Sum()).add(row, starts[device])
            else:
                tree.add(row, starts[device], depth)
        found = [*tree.lines(), *((label, rest[label]) for label in (OUTSIDE, BETWEEN) if label in rest)]
        for label, part in (*found, (TOTAL, total)):
            if label == TOTAL or _is_shown(part, min_bytes):
                sizes = (part.allocated, part.freed, part.forward, part.backward, part.temporary, part.highest)
                given = dict(zip(COLUMNS[1:], sizes, strict=True))
                first = (label, str(part.operators)) if COLUMNS[0] in columns else (label,)
                lines.append(cells.line(device, first, [given[name] for name in titles]))
    counted = (_right(COLUMNS[0]),) if COLUMNS[0] in columns else ()
    return cells.table((Column("module", elastic=True), *counted), titles, lines)


def columns_of(text: str | None) -> tuple[str, ...]:
    """The columns of a recorded tree of modules, the stable ones where there is none."""
    head = re.split(r" {2,}", (text or "").strip().partition("\n")[0].strip())
    found = tuple(name for name in COLUMNS if name in head)
    return found if head[0] == "module" and found else STABLE


def module_text(module: str | None) -> str:
    """A module's name in tables."""
    return "" if module is None else module or MODEL


class _Tree:
    """Modules by their names, parents before children, siblings in order of first use."""

    def __init__(self) -> None:
        self._sums: dict[str, Sum] = {}
        self._children: dict[str, list[str]] = {}
        self._roots: list[str] = []

    def add(self, row: OperatorRow, start: int, depth: int | None) -> None:
        for name in self._path(row.module or "", depth):
            self._sums[name].add(row, start)

    def _path(self, module: str, depth: int | None) -> Iterator[str]:
        """The names from the outermost to the module itself, or to ``depth``."""
        parts = module.split(".") if module else []
        inside = not parts or not parts[0].endswith(OUTSIDE_MODEL)
        names = [*([""] if inside else []), *(".".join(parts[: place + 1]) for place in range(len(parts)))]
        parent: str | None = None
        for name in names if depth is None else names[: depth + 1]:
            if name not in self._sums:
                self._sums[name] = Sum()
                (self._roots if parent is None else self._children.setdefault(parent, [])).append(name)
            yield name
            parent = name

    def lines(self) -> Iterator[tuple[str, Sum]]:
        waiting = [(root, 0) for root in reversed(self._roots)]
        while waiting:
            name, level = waiting.pop()
            yield "  " * level + (name.rpartition(".")[2] or MODEL), self._sums[name]
            waiting += [(child, level + 1) for child in reversed(self._children.get(name, []))]


class _Cells:
    """Numbers as cells; with a device column if there are several devices."""

    def __init__(self, starts: Starts, min_bytes: int) -> None:
        self._several = len(starts) > 1
        self._least = max(min_bytes, 1)

    def line(self, device: str, texts: tuple[str, ...], sizes: Iterable[int | None]) -> tuple[str, ...]:
        return (*texts, *((device,) if self._several else ()), *map(self.size, sizes))

    def size(self, size: int | None) -> str:
        if size is None:
            return "?"
        return format_size(size) if abs(size) >= self._least else "-"

    def table(self, columns: tuple[Column, ...], sizes: Iterable[str], lines: Iterable[tuple[str, ...]]) -> Table:
        device = (Column("device"),) if self._several else ()
        return Table((*columns, *device, *map(_right, sizes)), tuple(lines))


def _right(title: str) -> Column:
    return Column(title, "right")


def _is_shown(part: Sum, min_bytes: int) -> bool:
    return not min_bytes or max(part.allocated, part.freed) >= min_bytes


def _grouped(
    rows: Iterable[OperatorRow], starts: Starts, key: Callable[[OperatorRow], str]
) -> dict[tuple[str, str], Sum]:
    groups: dict[tuple[str, str], Sum] = {}
    for row in rows:
        groups.setdefault((row.device, key(row)), Sum()).add(row, starts[row.device])
    return groups


def _by_device(rows: Iterable[OperatorRow], starts: Starts) -> dict[str, Sum]:
    groups = _grouped(rows, starts, lambda row: "")
    return {device: groups[device, ""] for device in starts if (device, "") in groups}


def _totalled(
    title: str,
    groups: Iterable[tuple[tuple[str, str], Sum]],
    rows: Sequence[OperatorRow],
    starts: Starts,
    min_bytes: int,
) -> Table:
    cells = _Cells(starts, min_bytes)
    totals = (((device, TOTAL), total) for device, total in _by_device(rows, starts).items())
    lines = [
        cells.line(
            device, (label, str(part.operators)), (part.allocated, part.freed, part.kept, part.temporary, part.highest)
        )
        for (device, label), part in (*groups, *totals)
        if label == TOTAL or _is_shown(part, min_bytes)
    ]
    sizes = ("allocated", "freed", "net after frees", "temporary", "peak")
    return cells.table((Column(title), _right("operators")), sizes, lines)
