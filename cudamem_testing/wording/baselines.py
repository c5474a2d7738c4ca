"""Baselines: what a number says that is off the recorded one, and what grew. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence

from cudamem_testing.model.changes import ABOVE_START, Change, shown
from cudamem_testing.model.facts import Changed, GrownPlace, NoBaseline, Taken
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import NO_STACK
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.wording import evidence

#: Lines of a place that are named beside the one of most bytes.
LINES = 3
RECORD = "record it with --cudamem-update=baselines"
TITLES = {
    "requested": "live at the peak, places that grew:",
    "peak": "live at the peak, places that grew:",
    "retained": "still live:",
    "reserved": "segments that were taken:",
    "segments": "segments that were taken:",
    "allocations": "allocations of this run, by line:",
}


def changed(finding: Finding, fact: Changed) -> list[str]:
    """The number, its baseline, and what grew."""
    change = fact.change
    if change.shrank:
        return [f"{off(change)} ({finding.device}): {RECORD}"]
    lines = [f"{off(change)} ({finding.device})"]
    rows = [*map(_grown, fact.places), *map(_taken, fact.taken)]
    if fact.missing is not None:
        lines.append(evidence.missing(fact.missing))
    elif rows:
        lines += [TITLES.get(change.metric, ""), *_table(rows)]
    if fact.recorded:
        lines.append(f"recorded with {fact.recorded}, this run has {fact.now}: if that is the reason, {RECORD}")
    return lines


def no_baseline(finding: Finding, fact: NoBaseline) -> list[str]:
    """Which baseline is not there."""
    what = f" of {', '.join(fact.lacking)}" if fact.lacking else ""
    return [f"no baseline{what} on {finding.device} ({fact.environment}): --cudamem-update=baselines records one"]


def off(change: Change) -> str:
    """``requested 1.1 MiB above start is 0.1 MiB (+10.0%) above its baseline of 1.0 MiB, 10.2 KiB allowed``."""
    above = " above start" if change.metric in ABOVE_START else ""
    share = f" ({change.share})" if change.share else ""
    metric, size = change.metric, shown(change.metric, abs(change.growth))
    side = "above" if change.growth > 0 else "below"
    return (
        f"{metric} {change.after.text(metric)}{above} is {size}{share} {side} its baseline of "
        f"{change.before.text(metric)}, {shown(metric, change.slack)} allowed"
    )


def _grown(one: GrownPlace) -> tuple[str, ...]:
    before = f"<= {format_size(one.hidden)}" if one.hidden else "new"
    known = before if one.before is None else format_size(one.before)
    line = NO_STACK if one.line is None else str(one.line)
    others = [number for number in one.numbers if one.line is None or number != one.line.line]
    more = ", ..." if len(others) > LINES else ""
    where = f"{line} (and line {', '.join(map(str, others[:LINES]))}{more})" if others else line
    return f"+{format_size(one.growth)}", f"{known} -> {format_size(one.after)}", where


def _taken(one: Taken) -> tuple[str, ...]:
    line = NO_STACK if one.line is None else str(one.line)
    if one.bytes is None:
        return str(one.number), line
    return (
        format_size(one.bytes),
        count(one.number, "segment"),
        f"{line} (on a side stream)" if one.side_stream else line,
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Numbers, and last the place, which gives way."""
    width = max(map(len, rows))
    cells = tuple((*row[:-1], *[""] * (width - len(row)), row[-1]) for row in rows)
    columns = (*[Column("", "right")] * (width - 1), Column("", elastic=True))
    return Table(columns, cells).lines(evidence.WIDTH, header=False, indent=3)
