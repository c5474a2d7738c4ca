"""Plots a recording: levels over operator calls. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from cudamem_testing.model.sizes import format_size
from cudamem_testing.operators.record import Record
from cudamem_testing.operators.rows import BETWEEN, OperatorRow, is_on
from cudamem_testing.operators.summaries import module_text
from cudamem_testing.show.plots.lines import Moment, Picture, Shade, StepLine, draw
from cudamem_testing.show.usage import hide_wrong_arguments

__tracebackhide__ = hide_wrong_arguments


def plot(table: Record, path: str | Path, device: object = None) -> Path:
    """Draw one device of a table; see :meth:`.table.Reports.plot`."""
    return draw(picture_of(table, device), path)


def picture_of(table: Record, device: object = None) -> Picture:
    """The plot's data: the level after each operator call, the highest inside each, phases, markers, the peak.

    Raises:
        ValueError: if the device was not measured.
    """
    level = next((level for level in table.levels if device is None or is_on(level.device, device)), None)
    if level is None:
        raise ValueError(f"{device} was not measured (measured: {', '.join(level.device for level in table.levels)})")
    rows = [row for row in table.rows if row.device == level.device]
    places = [row.call + (row.operator != BETWEEN) for row in rows]
    lines = [StepLine("allocated", _points(places, [row.after for row in rows], (0, level.start)))]
    if any(row.peak is not None for row in rows):
        inside = _points([row.call for row in rows], [row.peak for row in rows])
        lines.append(StepLine("highest inside the operator", inside, thin=True))
    for name in ("active", "reserved"):
        values = [getattr(row, name) for row in rows]
        if any(value is not None for value in values):
            lines.append(StepLine(name, _points(places, values)))
    return Picture(
        title=f"Memory of {level.device} over operator calls",
        across="operator calls",
        lines=tuple(lines),
        shades=tuple(_shades(rows)),
        moments=tuple(Moment(marker.name, marker.call) for marker in table.markers),
        peak=_peak(rows),
    )


def _points(
    places: list[int], values: list[int | None] | list[int], first: tuple[int, int] | None = None
) -> tuple[tuple[int, int], ...]:
    found = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
    return (first, *found) if first is not None else tuple(found)


def _shades(rows: list[OperatorRow]) -> list[Shade]:
    shades = []
    calls = [row for row in rows if row.operator != BETWEEN]
    for phase, group in groupby(calls, key=lambda row: row.phase.value):
        run = [*group]
        shades.append(Shade(phase, run[0].call, run[-1].call + 1))
    return shades


def _peak(rows: list[OperatorRow]) -> Moment | None:
    known = [row for row in rows if row.peak is not None]
    if not known:
        return None
    highest = max(known, key=lambda row: (row.peak or 0, -row.call))
    where = f" in {module_text(highest.module)}" if highest.module is not None else ""
    name = f"peak {format_size(highest.peak or 0)}: {highest.operator}{where}"
    return Moment(name, highest.call, highest.peak)
