"""Baselines: what a number says that is off the recorded one, and which lines grew, are new or gone.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cudamem_testing.model.changes import ABOVE_START, Change, ChangedPlace, shown
from cudamem_testing.model.facts import Changed, NoBaseline, Taken
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import NO_STACK
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.wording import evidence

_OPERATORS = re.compile(r"[-+/%@]|(?<!\*)\*(?!\*)")
_ARGUMENTS = re.compile(r"\([^()]*\)")
_CALLS = re.compile("([A-Za-z_]\\w*)\0")

#: Lines of a place that are named beside the one of most bytes.
LINES = 3
RECORD = "record it with --cudamem-update=baselines"
TITLES = {
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
    if fact.missing is not None:
        lines.append(evidence.missing(fact.missing))
    lines += places(fact.places, fact.more, still_live=change.metric == "retained")
    if fact.taken:
        lines += [TITLES.get(change.metric, ""), *_table([*map(_taken, fact.taken)])]
    if fact.recorded:
        lines.append(f"recorded with {fact.recorded}, this run has {fact.now}: if that is the reason, {RECORD}")
    return lines


def no_baseline(finding: Finding, fact: NoBaseline) -> list[str]:
    """Which baseline is missing."""
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


def places(some: Sequence[ChangedPlace], more: int = 0, *, still_live: bool = False) -> Iterator[str]:
    """A line for each place, with what is written at the first one and where that was edited, and hints."""
    for number, one in enumerate(some):
        yield f"still live: {format_size(one.after)} {_where(one)}" if still_live else place(one)
        if one.was:
            yield f"   - {one.was}"
            yield f"   + {one.text}"
        elif one.text and not number and one.line is not None:
            yield f"   | {one.text}"
    if more:
        yield f"... {count(more, 'more line')}"
    if any(one.recorded for one in some):
        yield "   hint: grad mode was off there when the baseline was recorded: is a torch.no_grad() missing?"
    results = dict.fromkeys(one.result for one in some if one.result is not None)
    for line in [*results][:1]:
        yield f"   hint: results of {line} keep their autograd graph: is a .detach() missing where they are stored?"
    factors = sorted({one.factor for one in some if one.factor is not None})
    if factors:
        times = " or ".join(f"{factor} times" for factor in factors)
        yield f"   hint: as many blocks, each {times} as large: another dtype or shape?"


def place(one: ChangedPlace) -> str:
    """``saved for backward: +3.0 MiB by net.py:24 in Net.forward (gelu), 1.0 MiB -> 4.0 MiB``."""
    if one.line is None and not one.after:
        return f"gone: {format_size(one.growth)} by {_place(one.place)}{f': {one.text}' if one.text else ''}"
    if one.is_for_backward:
        word = "saved for backward"
    elif one.growth < 0:
        word = "shrank"
    else:
        word = "new" if one.before is None and not one.hidden else "grew"
    sign = "+" if one.growth > 0 else ""
    return f"{word}: {sign}{format_size(one.growth)} {_where(one)}{_numbers(one)}"


def _place(name: str) -> str:
    """``net.py in Net.forward``; of a library's function below it that one as well."""
    return " > ".join(" in ".join(part.split("::", 1)) for part in name.split(" > "))


def _where(one: ChangedPlace) -> str:
    """The line with the call behind it, and the line that called its function."""
    line = NO_STACK if one.line is None else str(one.line)
    others = [number for number in one.numbers if one.line is None or number != one.line.line]
    more = ", ..." if len(others) > LINES else ""
    also = f" (and line {', '.join(map(str, others[:LINES]))}{more})" if others else ""
    call = one.call or _only_call(one.text)
    if one.was and re.search(rf"\b{re.escape(call)}\b", one.was):  # the line had it before: another call may be new
        call = ""
    caller = "" if one.caller is None else f" <- {one.caller.file}:{one.caller.line}"
    return f"by {line}{f' ({call})' if call else ''}{also}{caller}"


def _only_call(text: str) -> str:
    """The name of what a line calls, where that is one thing and the line computes nothing else with it."""
    while (shorter := _ARGUMENTS.sub("\0", text)) != text:
        text = shorter
    names = {*_CALLS.findall(text)} if not _OPERATORS.search(text) else set()
    return names.pop() if len(names) == 1 else ""


def _numbers(one: ChangedPlace) -> str:
    """``, 1.0 MiB -> 4.0 MiB in 1 -> 4 blocks``; nothing for a line that is new."""
    if one.before is None:
        return f", <= {format_size(one.hidden)} -> {format_size(one.after)}" if one.hidden else ""
    blocks = one.blocks_before and one.blocks_before != one.blocks
    more = f" in {one.blocks_before} -> {count(one.blocks, 'block')}" if blocks else ""
    return f", {format_size(one.before)} -> {format_size(one.after)}{more}"


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
    """Numbers, and last the place."""
    width = max(map(len, rows))
    cells = tuple((*row[:-1], *[""] * (width - len(row)), row[-1]) for row in rows)
    return Table((*[Column("", "right")] * (width - 1), Column("")), cells).lines(header=False, indent=3)
