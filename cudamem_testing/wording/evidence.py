"""What the memory was made of, in lines below a finding. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable

from cudamem_testing.model.evidence import Evidence, NoEvidence, Shown, Why
from cudamem_testing.model.live_tables import LiveTable

WIDTH = 100
NO_EVENTS = "not known, no events were recorded (--cudamem-stacks=off, or a history of the test's own)"
WORKSPACES = "not known, a library may have taken a workspace in events that were not recorded"


def lines(evidence: Iterable[Evidence]) -> list[str]:
    """All of it, line by line."""
    return [line for one in evidence for line in _of(one)]


def _of(one: Evidence) -> list[str]:
    if isinstance(one, LiveTable):
        return live(one)
    if isinstance(one, Shown):
        return [*one.lines]
    return [missing(one)] if isinstance(one, NoEvidence) else [str(one)]


def live(table: LiveTable, width: int | None = WIDTH) -> list[str]:
    """A table of live blocks with its notes."""
    return [*table.text(width=width).splitlines(), *(f"note: {note}" for note in table.notes)]


def missing(one: NoEvidence) -> str:
    """What is not known, and why."""
    if one.why is Why.ERROR:
        return f"no evidence: {one.said}"
    reasons = {Why.NO_EVENTS: NO_EVENTS, Why.WORKSPACES: WORKSPACES, Why.NO_BLOCKS: f"not known, {one.said}"}
    return f"{one.what}: {reasons[one.why]}"
