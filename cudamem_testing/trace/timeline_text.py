"""The timeline as a coarse table: a row for each region or module, bytes by category when it held most.

::

    MiB on cpu   peak  PARAMETER  ACTIVATION  GRADIENT
    everything    107         13          59
      forward      96 ...

Sizes are rounded to a unit, so that the text stays the same when a small tensor is added or removed, and on another
processor. A category that is 0 everywhere after rounding has no column. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from cudamem_testing.show.tables import Column, Table
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.trace.series import NAMES, NamedSpan, Series, module_spans
from cudamem_testing.trace.timeline import Timeline

from ..model.sizes import UNITS, format_size, parse_size

__tracebackhide__ = hide_wrong_arguments

By: TypeAlias = Literal["region", "module"]
WHOLE = "everything"
_CHOICE = ("MiB", "KiB")
_DIGITS = 10
_HEAD = re.compile(r"\s*(\w+) on \S+ +peak\b")


def unit_of(text: str | None) -> str | None:
    """The unit in which a table was recorded; ``None`` for another text."""
    match = None if text is None else _HEAD.match(text)
    return None if match is None else match[1]


def render_timeline(
    timeline: Timeline,
    *,
    device: str | None = None,
    by: By = "region",
    depth: int = 2,
    unit: str | None = None,
    min_bytes: int | str = 0,
) -> str:
    """The table of one device: memory that the recording allocates, and older memory that its operators use.

    Args:
        timeline: of a trace.
        device: any spelling of one; by default the accelerator with the highest peak, else the CPU.
        by: what has a row: annotations (``record_function``, optimizer steps), or calls of modules.
        depth: how many levels of nested regions or modules have rows.
        unit: the unit that sizes are rounded to and shown in: ``MiB``, ``KiB``, ``B``, ``MB``, ... By default the
            largest of MiB, KiB and B in which the peak has at least two digits.
        min_bytes: leave out regions and modules whose peak is smaller than this.

    Raises:
        ValueError: for an option that is not known, a device on which nothing happened, or a unit in which every number
            is 0.
    """
    if by not in get_args(By):
        raise ValueError(f"by={by!r} is not known: write by='region' or by='module'")
    if unit is not None and unit.upper() not in UNITS:
        raise ValueError(f"unit={unit!r} is not known: write one of B, KiB, MiB, GiB, kB, MB, GB")
    columns = timeline.touched().series(device)
    peak = max(columns.totals, default=0)
    if unit is None:
        unit = next((one for one in _CHOICE if peak >= _DIGITS * UNITS[one.upper()]), "B")
    elif peak and 2 * peak < UNITS[unit.upper()]:
        raise ValueError(
            f"every number would be 0 in {unit}, for the peak is {format_size(peak)}: write a smaller unit="
        )
    spans: Iterable[NamedSpan] = (
        columns.spans if by == "region" else module_spans(timeline.categories.flow.trace, timeline.start, depth)
    )
    rows = [NamedSpan(WHOLE, 0, columns.times[-1] + 1, -1), *(span for span in spans if span.depth < depth)]
    return "\n".join(_table(columns, rows, unit, parse_size(min_bytes)).lines())


def _table(columns: Series, spans: list[NamedSpan], unit: str, min_bytes: int) -> Table:
    size = UNITS[unit.upper()]

    def rounded(nbytes: int) -> int:
        return (2 * nbytes + size) // (2 * size)

    found = []
    for span in spans:
        place = columns.highest(span.start, span.end)
        if span.name == WHOLE or columns.totals[place] >= min_bytes:
            found.append((span, columns.totals[place], columns.at(place)))
    shown = [name for name in NAMES if any(rounded(held.get(name, 0)) for _, _, held in found)]
    heads = (Column(f"{unit} on {columns.device}"), Column("peak", "right"), *(Column(name, "right") for name in shown))
    rows = [
        (
            "  " * (span.depth + 1) + span.name,
            str(rounded(total)),
            *(str(amount) if (amount := rounded(held.get(name, 0))) else "" for name in shown),
        )
        for span, total, held in found
    ]
    return Table(heads, tuple(rows))
