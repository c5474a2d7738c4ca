"""Totals: what a process that runs tests knows beside the records of its tests. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.plugin.settings import runs_tests
from cudamem_testing.recorders.base import untold
from cudamem_testing.static import error_text

if TYPE_CHECKING:
    from cudamem_testing.model.records import Environment, FixtureRecord, LedgerEntry
    from cudamem_testing.plugin.session import Session


class Totals(NamedTuple):
    """``unenforced`` counts budgets by reason, ``ignored`` findings by the rule that ignored them, ``unchecked`` what
    else was not checked, by what and why.
    """

    environment: Environment
    fixtures: list[FixtureRecord]
    unenforced: Mapping[str, int]
    findings: list[Finding]
    ledger: list[LedgerEntry]
    ignored: Mapping[str, int]
    notes: list[str]
    unchecked: Mapping[str, int]


def totals(session: Session) -> Totals:
    """Those of a session that has run its tests."""
    return Totals(
        session.environment,
        session.fixtures,
        session.judge.unenforced,
        session.findings,
        session.attributions.ledger(),
        session.leaks.ignored if session.leaks else {},
        session.recorders.notes,
        session.unchecked,
    )


def judge_run(session: Session, tests: int) -> None:
    """Judge what all tests together left, and count what could not be judged in any of them."""
    asked = session.settings.leaks
    if not asked == session.settings.cycles == "off":
        blind = [one for one in session.tracker.recorders if not one.device.pseudo and not one.tells_blocks]
        session.unchecked.update({f"test: leaks and cycles: {untold(one)}": tests for one in blind})
    if session.leaks is None or asked == "off" or not runs_tests(session.config):
        return
    try:
        found = session.leaks.of_run(Severity.WARN if asked == "warn" else Severity.FAIL)
        session.findings += session.policy.judged(found)
    except Exception as error:  # the run is over all the same
        session.findings.append(unjudged(error, Severity.WARN))


def unjudged(error: Exception, severity: Severity) -> Finding:
    """A finding of what could not be judged."""
    from cudamem_testing.model.facts import NotJudged

    return Finding(Kind.OTHER, Verdict.UNATTRIBUTED, severity, NotJudged(error_text(error).partition("\n")[0]))
