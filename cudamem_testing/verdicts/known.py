"""Applies known findings, first uses and an audit to the findings of a test. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cudamem_testing.model.causes import key_of
from cudamem_testing.model.findings import Finding, Severity
from cudamem_testing.model.remarks import Remark
from cudamem_testing.records.known import CauseKey, KnownFinding, is_recordable, judged, line_of, noted
from cudamem_testing.verdicts.first_use import FirstUse


class Judging:
    """What a run does with findings: ``lines`` are the known ones, from the file of that ``name``."""

    def __init__(
        self, lines: Mapping[CauseKey, KnownFinding], name: str, *, first_use: bool, update: bool, audit: bool
    ) -> None:
        self._lines, self._name = lines, name
        self._first_use = FirstUse() if first_use else None
        self._update, self._audit = update, audit

    def judged(self, found: Sequence[Finding]) -> list[Finding]:
        """The findings of one test with the severity that they have in this run."""
        if self._first_use is not None:
            keys = {*filter(None, map(key_of, found))}
            found = self._first_use.judged(found, {key for key in keys if line_of(self._lines, key) is not None})
        found = [judged(finding, self._lines, self._name) for finding in found]
        if self._update:
            found = [noted(finding, Remark.RECORDED) if is_recordable(finding) else finding for finding in found]
        if self._audit:
            found = [replace(one, severity=Severity.WARN) if one.severity is Severity.FAIL else one for one in found]
        return found
