"""Tables, as text and as Markdown. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from cudamem_testing.show.printable import elide, one_line

Align = Literal["left", "right"]
#: What GitHub's Markdown reads as emphasis, code, HTML, an entity, a formula, or the target of a link.
_MARKUP = re.compile(r"[`*<&$]|(?<=\])\(|\\(?=[!-/:-@\[-`{-~])")


class Column(NamedTuple):
    """A column; an ``elastic`` one is shortened if the table is too wide.

    Its cells lose their middle or, if they are ``paths`` (or ids of tests), the text before the last name, which is
    kept whole even if it is too wide. In Markdown the cells of a ``code`` column are written as code: names and ids are
    full of stars, brackets and dollars.
    """

    title: str
    align: Align = "left"
    elastic: bool = False
    paths: bool = False
    code: bool = False

    def cell(self, text: str, width: int) -> str:
        """The text in ``width`` characters, or more where its last name is longer."""
        short = elide_path(text, width) if self.paths else elide(text, width)
        return short.rjust(width) if self.align == "right" else short.ljust(width)

    def markdown(self, text: str) -> str:
        """The text as a cell of Markdown, in which nothing is markup."""
        text = one_line(text)
        shown = f"`{text.replace('`', chr(39))}`" if self.code and text else in_markdown(text)
        return shown.replace("|", r"\|")


class Table(NamedTuple):
    """Rows of text under columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self, width: int | None = None, *, header: bool = True, gap: int = 2, indent: int = 0) -> list[str]:
        """Aligned lines without trailing spaces, at most ``width`` characters wide if elastic columns allow it."""
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
        for row in self.rows:
            cells = (column.markdown(text) for column, text in zip(self.columns, row, strict=True))
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def in_markdown(text: str) -> str:
    """``text`` on one line of Markdown, in which nothing is markup."""
    return _MARKUP.sub(r"\\\g<0>", one_line(text))


def begin(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters: the end is left out."""
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."[: max(0, width)]


def elide_path(text: str, width: int) -> str:
    """``text`` in ``width`` characters: leading folders and names are left out first; the last name is kept whole.

    ``suites/models/test_a.py::test_b[c]`` becomes ``.../test_a.py::test_b[c]``, ``...::test_b[c]``, and ``test_b[c]``.
    """
    if len(text) <= width:
        return text
    names = text.partition("[")[0]
    shorter = ["..." + text[found.start() :] for found in re.finditer(r"/|::", names)]
    return next((one for one in shorter if len(one) <= width), text[_last_name(names) :])


def _last_name(names: str) -> int:
    return max(names.rfind("/") + 1, names.rfind("::") + 2 if "::" in names else 0)
