"""Failures of one cause, or of one test with other parameters: three in full, the rest one line each.

Hundreds of tests can fail for one reason. Their reports are shortened where they arrive to be printed, so that workers
of pytest-xdist count together. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing.model.findings import Severity

if TYPE_CHECKING:
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.model.records import TestRecord

FULL = 3


class Brief:
    """Remembers how many failures of each cause were reported in full, and which test was the first."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}
        self._shown: dict[tuple[str, str], int] = {}

    def shorten(self, report: pytest.TestReport, findings: Sequence[Finding]) -> None:
        """Show a line in the place of each finding from the fourth of its cause on.

        ``findings`` are those that failed the test in this phase: the report shows these, and nothing else.
        """
        lines = _lines(report)
        if lines is None or not findings:
            return
        from cudamem_testing.model.causes import key_of

        firsts: list[str | None] = []
        for finding in findings:
            key = key_of(finding)
            if key is None:
                firsts.append(None)
                continue
            first = self._first.setdefault(key, report.nodeid)
            number = self._shown[key] = self._shown.get(key, 0) + 1
            firsts.append(first if number > FULL else None)
        if any(firsts):
            from cudamem_testing.wording import same_cause, text

            parts = zip(findings, firsts, strict=True)
            shown = [text(finding) if first is None else same_cause(finding, first) for finding, first in parts]
            lines[:] = "\n".join(shown).split("\n")

    def shorten_parameters(self, report: pytest.TestReport, parts: Sequence[Sequence[Any]]) -> None:
        """Show the title of each finding in its place, from the fourth of one test with other parameters on.

        ``parts`` are what :func:`parts_of` says of the findings that failed the test in its call.
        """
        name, bracket, _ = report.nodeid.partition("[")
        lines = _lines(report)
        if not bracket or lines is None or sum(count for _, _, count in parts) != len(lines):
            return
        kept: list[str] = []
        for limit, title, count in parts:
            key = name, limit
            number = self._shown[key] = self._shown.get(key, 0) + 1
            kept += [title] if number > FULL else lines[:count]
            del lines[:count]
        lines[:] = kept


def parts_of(findings: Sequence[Finding]) -> list[tuple[str, str, int]]:
    """Which limit each finding is of, its title and its number of lines: plain values, which a report can carry."""
    from cudamem_testing.wording import text, title

    return [
        (f"{finding.cause} | {finding.device}", title(finding), text(finding).count("\n") + 1)
        for finding in findings
        if finding.severity is Severity.FAIL
    ]


def places_of(record: TestRecord, findings: Sequence[Finding]) -> list[int]:
    """The places in a record of those among some findings that have failed the test."""
    failing = {id(finding) for finding in findings if finding.severity is Severity.FAIL}
    return [place for place, finding in enumerate(record.findings) if id(finding) in failing]


def _lines(report: pytest.TestReport) -> list[str] | None:
    """The lines that pytest prints of a failure which shows no traceback: they can be changed in place."""
    entries: Sequence[Any] = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
    if len(entries) != 1 or getattr(entries[0], "style", None) != "value":
        return None
    lines = entries[0].lines
    return lines if isinstance(lines, list) else None
