"""What has changed between two tables of nested rows: timelines, and operators by module.

Columns after the first are right-aligned, a cell may be empty. A row is identified by its name and the names of the
rows that it is indented below. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from cudamem_testing.records.expected.difference import in_brief

_UNIT = re.compile(r"(\w+) on \S+")
Rows = Mapping[tuple[str, int], Mapping[str, str]]
"""Cells by column, of each row by its path and how many rows of the same path are above it."""


def compare_columns(before: str, after: str) -> tuple[list[str], str] | None:
    """A statement for each row that differs, and the text diff; ``None`` for tables that cannot be compared."""
    old, new = _table(before), _table(after)
    if old is None or new is None or old[0] != new[0]:
        return None
    unit = _UNIT.match(old[0])
    return in_brief(_changes(old[1], new[1], "" if unit is None else f" {unit[1]}"), before, after)


def _changes(old: Rows, new: Rows, unit: str) -> Iterator[str]:
    for key, cells in new.items():
        if key not in old:
            yield f"{_name(key)} is new: {', '.join(f'{name} {cell}{unit}' for name, cell in cells.items() if cell)}"
            continue
        names = dict.fromkeys((*old[key], *cells))
        told = [
            f"{name} {then or '0'} -> {now or '0'}{unit}"
            for name in names
            if (then := old[key].get(name, "")) != (now := cells.get(name, ""))
        ]
        if told:
            yield f"{_name(key)}: {', '.join(told)}"
    yield from (f"{_name(key)} is gone" for key in old if key not in new)


def _name(key: tuple[str, int]) -> str:
    path, above = key
    return f"{path} ({above + 1}.)" if above else path


def _table(text: str) -> tuple[str, Rows] | None:
    """The head of the first column, and the rows; ``None`` for what is no table, such as an empty text."""
    head, *lines = [line for line in text.split("\n") if line.strip()] or [""]
    heads = [(match[0], match.end()) for match in re.finditer(r"\S+(?: \S+)*", head)]
    if len(heads) < 2:
        return None
    found: dict[tuple[str, int], Mapping[str, str]] = {}
    above: list[tuple[int, str]] = []
    for line in lines:
        first = re.split(r" {2,}", line.strip(), maxsplit=1)[0]
        indent = len(line) - len(line.lstrip())
        above = [*(one for one in above if one[0] < indent), (indent, first)]
        path = " > ".join(name for _, name in above)
        number = sum(1 for known, _ in found if known == path)
        found[path, number] = _cells(line, heads, indent + len(first))
    return heads[0][0], found


def _cells(line: str, heads: Sequence[tuple[str, int]], start: int) -> Mapping[str, str]:
    cells = {}
    for name, end in heads[1:]:
        cells[name] = line[start:end].strip()
        start = max(start, end)
    return cells
