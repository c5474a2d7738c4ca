"""Text of evidence: what the memory consisted of, in lines below a finding. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable

from cudamem_testing.model.evidence import Evidence, NoEvidence, Shown, Trend, Why
from cudamem_testing.model.live_tables import LiveTable
from cudamem_testing.model.sizes import count, format_size

_BARS = "▁▂▃▄▅▆▇█"
NO_EVENTS = "unknown, no events were recorded (--cudamem-stacks=off, or the test has its own history)"
WORKSPACES = "unknown, a library may have allocated a workspace without a recorded event"


def lines(evidence: Iterable[Evidence]) -> list[str]:
    """All evidence, line by line."""
    return [line for one in evidence for line in _of(one)]


def _of(one: Evidence) -> list[str]:
    if isinstance(one, LiveTable):
        return live(one)
    if isinstance(one, Shown):
        return [*one.lines]
    if isinstance(one, Trend):
        return [trend(one)]
    return [missing(one)] if isinstance(one, NoEvidence) else [str(one)]


def live(table: LiveTable) -> list[str]:
    """A table of live blocks with its notes; nothing is cut, for it may be read in a log."""
    return [*table.text().splitlines(), *(f"note: {note}" for note in table.notes)]


def trend(one: Trend) -> str:
    """A line of bars, one for each stretch of the window: ``over 182 events  ▁▃█▃▁  peak 66.0 MiB``."""
    low, high = min(one.levels), max(one.levels)
    top = len(_BARS) - 1
    bars = "".join(_BARS[top if high == low else (level - low) * top // (high - low)] for level in one.levels)
    return f"over {count(one.events, 'event')}  {bars}  {format_size(low)} to {format_size(high)}"


def missing(one: NoEvidence) -> str:
    """What is unknown, and why."""
    if one.why is Why.ERROR:
        return f"no evidence: {one.said}"
    reasons = {Why.NO_EVENTS: NO_EVENTS, Why.WORKSPACES: WORKSPACES, Why.NO_BLOCKS: f"unknown, {one.said}"}
    return f"{one.what}: {reasons[one.why]}"
