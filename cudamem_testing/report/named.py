"""Findings by test, one line each, for commands that print a report later than pytest. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from cudamem_testing.model.findings import Finding, Severity
from cudamem_testing.model.records import RunRecord
from cudamem_testing.model.sizes import count
from cudamem_testing.show.printable import elide, one_line
from cudamem_testing.wording.findings import headline

MOST, LONGEST = 100, 400


def named_lines(run: RunRecord, most: int = MOST) -> list[str]:
    """The test and the reason of everything that fails or warns, in the order of the tests, failures first."""
    found = [pair for pair in run.all_findings if pair[1].severity is not Severity.NOTE]
    found.sort(key=lambda pair: pair[1].severity is Severity.WARN)
    lines = [_line(nodeid, one) for nodeid, one in found[:most]]
    return [*lines, *([f"... {count(len(found) - most, 'more finding')}"] if len(found) > most else [])]


def _line(nodeid: str, one: Finding) -> str:
    word = "warning: " if one.severity is Severity.WARN else ""
    line = f"{word}{one_line(nodeid) or 'the run itself'}: {one_line(headline(one))}"
    line += f", allocated {one.allocated}" if one.allocated else ""
    return elide(line + (f", held by {one.holder}" if one.holder else ""), LONGEST)
