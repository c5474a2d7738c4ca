"""Reads a recorded text of a data flow or of categories back into its rows, as :func:`.text.layout` wrote it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cudamem_testing.trace.text import Detail, TextRow

_HEAD = re.compile(r"(\S.*?): +(unused|T\d+.*)")
_ROW = re.compile(r"((?!T\d)\S.*?) +((?:T\d+.*?)?) *->(.*)")
_REGION = re.compile(r"-- (.*?) -*")
_NO_REGION = "(no region)"
_LABEL = re.compile(r"(T\d+)(.*)")


_VERSION = re.compile(r"T\d+\(v\d+")
_MODULES = re.compile(r"\s*module +phase +operators\b")


def detail_of(text: str | None) -> Detail:
    """The detail that a data flow was recorded with; that of new texts where there is none."""
    if text is None:
        return "operators"
    return "modules" if _MODULES.match(text) else "full" if _VERSION.search(text) else "operators"


class Tensor(NamedTuple):
    """A tensor in a row: ``T3`` and what follows, such as ``(v1*)`` or `` (GRADIENT)``."""

    name: str
    more: str

    @classmethod
    def read(cls, label: str) -> Tensor:
        """Read a label that begins with a number."""
        match = _LABEL.match(label)
        return cls(label, "") if match is None else cls(match[1], match[2])


class Recorded(NamedTuple):
    """A text: its names with their tensors, and its rows."""

    heads: dict[str, str]
    rows: list[TextRow]


def read_text(text: str) -> Recorded | None:
    """The names and rows of a text; ``None`` if a line is not of such a text."""
    try:
        return _read(text)
    except _OtherTextError:
        return None


def _read(text: str) -> Recorded:
    heads: dict[str, str] = {}
    rows: list[TextRow] = []
    region: tuple[str, ...] = ()
    arrow = 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        if line[0] == " ":
            if not rows:
                raise _OtherTextError
            last = rows[-1]
            inputs, outputs = (_labels(part) for part in (line[:arrow], line[arrow + 2 :]))
            rows[-1] = last._replace(inputs=last.inputs + inputs, outputs=last.outputs + outputs)
        elif match := _REGION.fullmatch(line):
            region = () if match[1] == _NO_REGION else tuple(match[1].split(" / "))
        elif match := _ROW.fullmatch(line):
            arrow = match.end(0) - len(match[3]) - 2
            rows.append(TextRow(region, match[1], _labels(match[2]), _labels(match[3])))
        elif not rows and (match := _HEAD.fullmatch(line)):
            heads[match[1]] = match[2]
        else:
            raise _OtherTextError
    return Recorded(heads, rows)


def _labels(cell: str) -> tuple[str, ...]:
    labels = tuple(filter(None, (label.strip() for label in cell.split(","))))
    if not all(map(_LABEL.match, labels)):
        raise _OtherTextError
    return labels


class _OtherTextError(ValueError):
    """A line that is not of such a text."""
