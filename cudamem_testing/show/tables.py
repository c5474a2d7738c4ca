"""Tables, as text and as Markdown. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Align = Literal["left", "right"]


class Column(NamedTuple):
    """A column; an ``elastic`` one gives way when the table is too wide.

    Its cells lose their middle or, when they are ``paths`` (or ids of tests), what stands before the last names.
    """

    title: str
    align: Align = "left"
    elastic: bool = False
    paths: bool = False

    def cell(self, text: str, width: int) -> str:
        """The text in exactly ``width`` characters."""
        short = elide_path(text, width) if self.paths else elide(text, width)
        return short.rjust(width) if self.align == "right" else short.ljust(width)


class Table(NamedTuple):
    """Rows of text under columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self, width: int | None = None, *, header: bool = True, gap: int = 2, indent: int = 0) -> list[str]:
        """Aligned lines without trailing spaces, at most ``width`` characters wide where elastic columns allow it."""
        rows = [tuple(map(one_line, row)) for row in self.rows]
        if header:
            rows.insert(0, tuple(column.title for column in self.columns))
        if not rows:
            return []
        widths = [max(len(row[place]) for row in rows) for place in range(len(self.columns))]
        if width is not None:
            spare = width - indent - sum(widths) - gap * (len(widths) - 1)
            for place in reversed(range(len(widths))):
                if spare < 0 and self.columns[place].elastic:
                    narrower = max(12, widths[place] + spare)
                    spare += widths[place] - narrower
                    widths[place] = narrower
        lines = []
        for row in rows:
            cells = [column.cell(text, size) for column, text, size in zip(self.columns, row, widths, strict=True)]
            lines.append((" " * indent + (" " * gap).join(cells)).rstrip())
        return lines

    def markdown(self) -> str:
        """The table for a pull request."""
        lines = [
            "| " + " | ".join(column.title for column in self.columns) + " |",
            "| " + " | ".join("---:" if column.align == "right" else "---" for column in self.columns) + " |",
        ]
        lines += ["| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def one_line(text: str) -> str:
    """``text`` on one line: control and unprintable characters are spelled out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def elide(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters: the middle gives way, the end keeps most of the room."""
    if len(text) <= width:
        return text
    if width <= 3:
        return text[:width]
    tail = (width - 3) * 2 // 3
    return f"{text[: width - 3 - tail]}...{text[len(text) - tail :]}"


def begin(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters: its end gives way."""
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."[: max(0, width)]


def elide_path(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters: leading folders and names give way first, then the middle.

    ``suites/models/test_a.py::test_b[c]`` becomes ``.../test_a.py::test_b[c]`` and then ``...::test_b[c]``.
    """
    if len(text) <= width:
        return text
    names = text.partition("[")[0]
    shorter = ["..." + text[found.start() :] for found in re.finditer(r"/|::", names)]
    return next((one for one in shorter if len(one) <= width), elide(text[_last_name(names) :], width))


def _last_name(names: str) -> int:
    return max(names.rfind("/") + 1, names.rfind("::") + 2 if "::" in names else 0)
