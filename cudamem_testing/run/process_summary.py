"""What a process that runs tests knows besides the records of its tests. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.model.records import Environment, FixtureRecord, LedgerEntry, Unchecked
    from cudamem_testing.run.session import Session


class ProcessSummary(NamedTuple):
    """``unenforced`` counts budgets by reason, ``ignored`` findings by the rule that ignored them, ``unchecked`` what
    else was not checked, by what and why. ``outside`` has a line for each card about memory outside torch's allocator.
    """

    environment: Environment
    fixtures: list[FixtureRecord]
    unenforced: Mapping[str, int]
    findings: list[Finding]
    ledger: list[LedgerEntry]
    ignored: Mapping[str, int]
    notes: list[str]
    unchecked: Mapping[Unchecked, int]
    outside: list[str]


def process_summary(session: Session) -> ProcessSummary:
    """Those of a session that has run its tests."""
    return ProcessSummary(
        session.environment,
        session.fixtures,
        session.unenforced,
        session.findings,
        session.attributions.ledger(),
        session.leaks.ignored if session.leaks else {},
        session.recorders.notes,
        session.unchecked,
        session.outside.notes(),
    )
