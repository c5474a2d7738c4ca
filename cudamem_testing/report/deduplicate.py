"""Shortens repeated failures, of one cause or of one test with other parameters: three in full, the rest one line each.

Hundreds of tests can fail for one reason. Their reports are shortened in the process that prints them, so that workers
of pytest-xdist count together. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cudamem_testing.model.causes import key_of
from cudamem_testing.model.findings import Severity
from cudamem_testing.wording.findings import same_cause, text, title

if TYPE_CHECKING:
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.model.records import TestRecord

FULL = 3


class Deduplicated:
    """Remembers how many failures of each cause were reported in full, and which test was the first."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}
        self._shown: dict[tuple[str, str], int] = {}

    def shorten(self, nodeid: str, lines: list[str], findings: Sequence[Finding]) -> None:
        """Replace each finding from the fourth of its cause on by one line.

        ``findings`` are those that failed the test in this phase, and ``lines`` their text, which is changed.
        """
        if not findings:
            return
        firsts: list[str | None] = []
        for finding in findings:
            key = key_of(finding)
            if key is None:
                firsts.append(None)
                continue
            first = self._first.setdefault(key, nodeid)
            number = self._shown[key] = self._shown.get(key, 0) + 1
            firsts.append(first if number > FULL else None)
        if any(firsts):
            parts = zip(findings, firsts, strict=True)
            shown = [text(finding) if first is None else same_cause(finding, first) for finding, first in parts]
            lines[:] = "\n".join(shown).split("\n")

    def shorten_parameters(self, nodeid: str, lines: list[str], parts: Sequence[Sequence[Any]]) -> None:
        """Keep only the title of each finding, from the fourth of one test with other parameters on.

        ``parts`` are what :func:`parts_of` says of the findings that failed the test in its call.
        """
        name, bracket, _ = nodeid.partition("[")
        if not bracket or sum(count for _, _, count in parts) != len(lines):
            return
        kept: list[str] = []
        for limit, shown, count in parts:
            key = name, limit
            number = self._shown[key] = self._shown.get(key, 0) + 1
            kept += [shown] if number > FULL else lines[:count]
            del lines[:count]
        lines[:] = kept


def parts_of(findings: Sequence[Finding]) -> list[tuple[str, str, int]]:
    """The limit of each finding, its title and its number of lines, as plain values for a report."""
    return [
        (f"{finding.cause} | {finding.device}", title(finding), text(finding).count("\n") + 1)
        for finding in findings
        if finding.severity is Severity.FAIL
    ]


def places_of(record: TestRecord, findings: Sequence[Finding]) -> list[int]:
    """The places in a record of those among some findings that have failed the test."""
    failing = {id(finding) for finding in findings if finding.severity is Severity.FAIL}
    return [place for place, finding in enumerate(record.findings) if id(finding) in failing]
