"""Failures of one cause: three in full, the rest one line each.

Hundreds of tests can fail for one reason. Their reports are shortened where they arrive to be printed, so that workers
of pytest-xdist count together. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cudamem_testing.model.findings import Finding

FULL = 3


class Brief:
    """Remembers how many failures of each cause were reported in full, and which test was the first."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}
        self._told: dict[tuple[str, str], int] = {}

    def shorten(self, report: pytest.TestReport, findings: Sequence[Finding]) -> None:
        """Put a line in the place of each finding that failed the test, from the fourth of its cause on."""
        lines = _lines(report)
        if lines is None:
            return
        from cudamem_testing.model.causes import key_of

        text = "\n".join(lines)
        for finding in findings:
            key = key_of(finding)
            if key is None or str(finding) not in text:
                continue
            self._told[key] = self._told.get(key, 0) + 1
            first = self._first.setdefault(key, report.nodeid)
            if self._told[key] > FULL:
                text = text.replace(str(finding), f"{finding.message}: the same cause as in {first}", 1)
        lines[:] = text.split("\n")


def _lines(report: pytest.TestReport) -> list[str] | None:
    """The lines that pytest prints of a failure which shows no traceback: they can be changed in place."""
    entries: Sequence[Any] = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
    if len(entries) != 1 or getattr(entries[0], "style", None) != "value":
        return None
    lines = entries[0].lines
    return lines if isinstance(lines, list) else None
