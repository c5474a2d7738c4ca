"""Judges what is left at the end of a test, and of wider fixtures that ended with it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cudamem_testing.model.findings import Finding, Kind, Severity
from cudamem_testing.model.override import NOTHING, cycles_of
from cudamem_testing.run.cycles import CycleCheck
from cudamem_testing.run.leaks import LeakCheck
from cudamem_testing.run.running import ActiveTest, Fixture, LeakSubject
from cudamem_testing.windows.defaults import cycles_fail
from cudamem_testing.windows.tracker import Tracker

if TYPE_CHECKING:
    from cudamem_testing.model.settings import Settings
    from cudamem_testing.verdicts.fixtures import GrownFixtures

Release = Callable[[], None] | None


class Retained:
    """Asks the checks of leaks and cycles."""

    def __init__(self, settings: Settings, tracker: Tracker, leaks: LeakCheck, cycles: CycleCheck) -> None:
        self._settings = settings
        self._tracker = tracker
        self._leaks = leaks
        self._cycles = cycles
        self._fixtures: GrownFixtures | None = None  # few runs find something
        self._judges_all = settings.on and "off" not in (settings.leaks, settings.cycles)

    @property
    def _grown(self) -> GrownFixtures:
        from cudamem_testing.verdicts.fixtures import GrownFixtures

        self._fixtures = self._fixtures or GrownFixtures()
        return self._fixtures

    def judge(self, running: ActiveTest, release: Release) -> list[Finding]:
        """Findings at the end of a test; ``release`` clears the frames of a failed one. For a test that has already
        failed they are warnings. A fixture is judged independently of the test.
        """
        unmarked = running.override is NOTHING and running.comparison is None and not running.budgets
        alone = running.failure is None and not running.over and not running.earlier
        if unmarked and alone and self._judges_all and self._fixtures is None and self._cycles.watches:
            subject = running.subject
            if not self._leaks.left(subject, fresh=False) and self._cycles.is_quiet(subject):
                return []  # most tests retain nothing, and no garbage was collected in them
        leaks = running.override.leaks or self._settings.leaks
        cycles = running.cycles
        over: list[Fixture] = []
        if running.over and self._settings.on:
            over += [one for one in running.over if one.entrusted or self._leaks.left(one.subject)]
        found: list[Finding] = []
        error, subject = running.failure, running.subject
        subject.exact = running.asks_what_is_left and (error is None or (running.failed_call and release is not None))
        if self._settings.on and (leaks == "off" or cycles == "off" or running.override.device is not None):
            subject.unjudged |= self._unasked(running, leaks, cycles)
        if not self._settings.on or leaks == cycles == "off":
            self._cycles.drop()
            if subject.exact:
                subject.release_frames = release
                self._leaks.judge(subject, None)
            elif release is not None:
                release()
            if self._settings.on and not subject.exact:
                self._leaks.exclude_workspaces(subject)
        else:
            failed = error is not None and not running.skipped
            severity = Severity.WARN if leaks == "warn" or failed else Severity.FAIL
            subject.release_frames, subject.over = release, over
            found = self._found(subject, severity, leaks, cycles, failed=error is not None)
            if found or (self._fixtures is not None and self._fixtures.watching):
                gained = {one.device: size for one, size, _ in running.phases.gained(fresh=False)}
                found = self._grown.judged(found, running.fixtures(), gained, severity)
        if running.earlier and self._settings.on and leaks != "off":
            severity = Severity.WARN if leaks == "warn" or error is not None else Severity.FAIL
            before = self._leaks.still_live(running.earlier, severity)
            found += [replace(one, owner="an earlier attempt") for one in before]
        for place, fixture in enumerate(over, 1):
            found += self._left_by(fixture, over[place:], release)
            subject.unjudged |= fixture.subject.unjudged
        return found

    def ended(self, name: str, number: int) -> None:
        """A wider fixture was torn down; its number distinguishes fixtures of one name."""
        if self._fixtures is not None:
            self._fixtures.ended(name, number)

    def _left_by(self, fixture: Fixture, others: Sequence[Fixture], release: Release) -> list[Finding]:
        """Findings for what an ended wider fixture left; what settling frees of it does not count in the test."""
        leaks, cycles = self._settings.leaks, cycles_of(NOTHING, self._settings)
        if leaks == cycles == "off":
            return []
        span = self._tracker.open(f"what {fixture.owner.label} left", exclusive=True)
        try:
            fixture.subject.release_frames, fixture.subject.over = release, others
            severity = Severity.WARN if leaks == "warn" else Severity.FAIL
            found = self._found(fixture.subject, severity, leaks, cycles, failed=False)
            if leaks != "off":
                found += self._leaks.not_undone(fixture, severity)
        finally:
            fixture.subject.release_frames = None  # it refers to the error
            self._tracker.close(span)
        if any(finding.kind is Kind.CYCLE for finding in fixture.freed):
            fixture.subject.unjudged.add(Kind.CYCLE)
        found += [_freed(finding, cycles) for finding in fixture.freed if _is_asked(finding, leaks, cycles)]
        return [replace(one, owner=fixture.owner.label) for one in found]

    def _found(
        self, subject: LeakSubject, severity: Severity, leaks: str, cycles: str | None, *, failed: bool
    ) -> list[Finding]:
        if cycles != "off":
            self._cycles.begun(subject)
        found = self._leaks.judge(subject, severity)
        collected = self._cycles.judge(cycles, failed=failed)
        if not self._cycles.watches:
            subject.unjudged.add(Kind.CYCLE)
        if not found and not collected:
            return []
        rest = [*self._cycles.completed(found, cycles)]
        if any(one.bytes is None for one in collected) or any(one.kind is Kind.CYCLE for one in rest):
            subject.unjudged.add(Kind.CYCLE)  # garbage that was not explained, or a cycle of which nothing was read
        return [*collected, *(one for one in rest if leaks != "off" or one.kind is Kind.CYCLE)]

    def _unasked(self, running: ActiveTest, leaks: str, cycles: str | None) -> set[Kind]:
        """The kinds that the test's own marker leaves out, everywhere or on a measured device."""
        every = running.override.device is None or all(map(running.override.covers, self._leaks.devices))
        return {kind for kind, asked in ((Kind.LEAK, leaks), (Kind.CYCLE, cycles)) if asked == "off" or not every}


def _is_asked(finding: Finding, leaks: str, cycles: str | None) -> bool:
    return (cycles if finding.kind is Kind.CYCLE else leaks) != "off"


def _freed(finding: Finding, cycles: str | None) -> Finding:
    """A cycle that was freed while others were settled: it kept memory, and who closed it is unknown."""
    if finding.kind is not Kind.CYCLE or finding.device is None:
        return finding
    fails = cycles_fail(finding.device) if cycles is None else cycles != "warn"
    return replace(finding, severity=Severity.FAIL if fails else Severity.WARN)
