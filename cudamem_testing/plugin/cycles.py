"""The cycle check: what the collector found during a test and when what it retained was settled.

Nothing is collected for its sake: automatic collections, those of the test's own and the one of settling are watched,
and garbage without a tensor is passed over at once. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from cudamem_testing.cycles.watch import CycleWatch
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.static import error_text

if TYPE_CHECKING:
    from cudamem_testing.cycles.collect import ReferenceCycles
    from cudamem_testing.cycles.explain import Question
    from cudamem_testing.cycles.results import Cycle
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.facts import NotExplained
    from cudamem_testing.model.stacks import Stack
    from cudamem_testing.plugin.cycle_findings import CycleFindings
    from cudamem_testing.plugin.evidence import Evidence
    from cudamem_testing.plugin.leaks import LeakCheck
    from cudamem_testing.plugin.running import Subject

#: Processor time that explanations may take in one test; collections after that are not looked at.
MOST_SECONDS = 2.0


class CycleCheck:
    """Watches tests, and judges the cycles that kept memory of a measured device."""

    def __init__(self, leaks: LeakCheck, ignore_below: Callable[[Device], int], evidence: Evidence) -> None:
        self._leaks = leaks
        self._ignore_below = ignore_below
        self._evidence = evidence
        self._watch = CycleWatch(self._tell, self._question, failed=self._note)
        self._problems: list[NotExplained] = []
        self._subject: Subject | None = None
        self._found: list[list[Cycle]] = []
        self._spent = self._asked = 0.0

    @cached_property
    def _findings(self) -> CycleFindings:
        """For the first test with a cycle; few runs have one."""
        from cudamem_testing.plugin.cycle_findings import CycleFindings

        return CycleFindings(self._ignore_below)

    def begin(self, subject: Subject) -> None:
        """A test begins."""
        self._subject, self._spent = subject, 0.0
        self._found.clear()
        self._problems.clear()
        self._watch.start()

    def begun(self, subject: Subject) -> None:
        """The test is about to be settled; torch may have come only during it."""
        if self._subject is None:
            self.begin(subject)

    def drop(self) -> None:
        """The test is over, and nobody asks for its cycles."""
        self._watch.stop()
        self._subject = None
        self._found.clear()

    def judge(self, asked: str | None, failed: bool) -> list[Finding]:
        """The findings of the test that is over; ``asked`` is the severity that was asked for, ``None`` the default."""
        subject, found = self._subject, self._found[:]
        self.drop()
        if subject is None or asked == "off" or not (found or self._problems):
            return []
        findings = [Finding(Kind.CYCLE, Verdict.CYCLE, Severity.NOTE, problem) for problem in self._problems]
        if found:
            findings += self._findings.of(found, subject.judged, asked, failed=failed)
        return findings

    @staticmethod
    def completed(findings: Sequence[Finding], cycles: Sequence[Finding], asked: str | None) -> Iterator[Finding]:
        """Findings of leaks, in which the remark that a collection freed something gives way to cycles that explain it.

        Where none does, the cycle could not be read: that is a warning.
        """
        explained = {finding.device for finding in cycles}
        for finding in findings:
            if finding.kind is not Kind.CYCLE:
                yield finding
            elif finding.device not in explained and asked != "off":
                from cudamem_testing.model.facts import Remark

                severity = Severity.FAIL if asked == "strict" else Severity.WARN
                yield replace(finding, severity=severity).remarked(Remark.UNREAD)

    def region(self) -> ReferenceCycles:
        """Cycles of a block inside a test; what it finds is the block's own matter."""
        from cudamem_testing.plugin.region import Region

        return Region(self._watch, lambda: self._ask(own=False))

    def _tell(self, cycles: list[Cycle]) -> None:
        self._found.append(cycles)
        self._spent += time.thread_time() - self._asked

    def _note(self, error: Exception) -> None:
        from cudamem_testing.model.facts import NotExplained

        self._problems.append(NotExplained(error_text(error)))

    def _question(self) -> Question | None:
        if self._spent > MOST_SECONDS:
            from cudamem_testing.model.facts import NotExplained

            late = NotExplained(seconds=MOST_SECONDS)
            if late not in self._problems:
                self._problems.append(late)
            return None
        self._asked = time.thread_time()
        return self._ask(own=True)

    def _ask(self, *, own: bool) -> Question:
        from cudamem_testing.cycles.explain import Question
        from cudamem_testing.model.stacks import Stack

        stacks: dict[tuple[str, int], Stack] = {}
        measured: set[str] = set()
        unknown: set[str] = set()
        for device in self._leaks.devices:
            measured.add(str(device))
            blocks = self._leaks.live(device, self._subject if own else None)
            if blocks is None:
                unknown.add(str(device))
            else:
                stacks.update(((str(device), block.address or 0), block.stack) for block in blocks)

        def allocated(device: str, address: int) -> Stack | None:
            return Stack() if device in unknown else stacks.get((device, address))

        return Question(self._evidence.locator, measured.__contains__, allocated, known_only=own)
