"""The terminal summary: what the run measured, and which tests cost most. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from cudamem_testing.model.blocks import count
from cudamem_testing.model.findings import Finding, Severity
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.windows import Window
from cudamem_testing.show.tables import Column, Table

UNKNOWN = "?"
COLUMNS = (
    Column("peak", "right"),
    Column("reserved", "right"),
    Column("retained", "right"),
    Column("allocs", "right"),
    Column("budget", "right"),
    Column("test", elastic=True),
)


def summary_lines(run: RunRecord, *, top: int, width: int, offers: int = 3) -> list[str]:
    """The lines of the summary: findings, the table of the ``top`` tests, totals, and budgets to paste."""
    measured = [test for test in run.tests if test.windows]
    lines = finding_lines(run)
    rows = ranked(measured)
    if top and rows:
        devices = {str(window.device) for _, window in rows}
        table = Table(COLUMNS, tuple(_row(test, window, len(devices) > 1) for test, window in rows[:top]))
        lines += table.lines(width)
        if len(rows) > top:
            lines.append(f"... {len(rows) - top} more (--cudamem-top={len(rows)} shows them)")
    lines.append(total_line(run, measured))
    lines += [f"not enforced: {count(number, 'budget')} ({reason})" for reason, number in run.unenforced.items()]
    lines += [f"note: {note}" for note in run.notes]
    if top:
        lines += _offers(measured, offers)
    return lines


def ranked(tests: Iterable[TestRecord]) -> list[tuple[TestRecord, Window]]:
    """The call window of each test and device, by peak above start, largest first; unknown ones last."""
    calls = [(test, window) for test in tests for window in test.windows if window.name == "call"]
    return sorted(calls, key=lambda pair: (pair[1].peak_growth is None, -(pair[1].peak_growth or 0)))


def finding_lines(run: RunRecord) -> list[str]:
    """One line for each kind of finding that fails or warns."""
    tally: Counter[tuple[str, str, str]] = Counter()
    tests: dict[tuple[str, str, str], set[str]] = {}
    for nodeid, finding in all_findings(run):
        if finding.severity is not Severity.NOTE:
            key = (finding.severity.value, finding.kind.value, finding.verdict.value)
            tally[key] += 1
            tests.setdefault(key, set()).add(nodeid)
    return [
        f"{kind}: {count(number, 'finding')} ({verdict}{', warning' if severity == 'warn' else ''})"
        f" in {count(len(tests[severity, kind, verdict]), 'test')}"
        for (severity, kind, verdict), number in sorted(tally.items())
    ]


def all_findings(run: RunRecord) -> list[tuple[str, Finding]]:
    """Every finding with the id of its test; an empty id for the run's own."""
    found = [(test.nodeid, finding) for test in run.tests for finding in test.findings]
    return found + [("", finding) for finding in run.findings]


def total_line(run: RunRecord, measured: Sequence[TestRecord]) -> str:
    """How many tests were measured on what, and how many never used torch."""
    devices = ", ".join(run.environment.devices) or "nothing"
    unused = len(run.tests) - len(measured)
    rest = f"; {count(unused, 'test')} without torch" if unused else ""
    incomplete = sum(1 for test in measured if any(not window.complete for window in test.windows))
    partly = f"; {incomplete} measured in part" if incomplete else ""
    return f"measured {count(len(measured), 'test')} on {devices}{rest}{partly}"


def _row(test: TestRecord, window: Window, several: bool) -> tuple[str, ...]:
    whole = next((one for one in test.whole if one.device == window.device), None)
    used = UNKNOWN if test.budget_used is None else f"{test.budget_used:.0%}"
    return (
        _size(window.peak_growth),
        "-" if window.device.kind == "cpu" else _size(window.reserved_growth),
        _size(whole.retained if whole else None),
        UNKNOWN if window.allocations is None else str(window.allocations),
        used if test.budget_used is not None else "-",
        f"{test.nodeid} ({window.device})" if several else test.nodeid,
    )


def _offers(measured: Sequence[TestRecord], offers: int) -> list[str]:
    without = [
        (test, window)
        for test, window in ranked(test for test in measured if test.budget_used is None and test.outcome == "passed")
        if window.peak_growth
    ]
    if not without or not offers:
        return []
    lines = ["to hold a test to what it takes now, with a tenth to spare:"]
    for test, window in without[:offers]:
        lines.append(f"  {test.nodeid}")
        lines.append(f'    @pytest.mark.memory_budget(peak="{offered(window.peak_growth or 0)}")')
    return lines


def offered(size: int) -> str:
    """A budget for a measured peak: a tenth more, rounded up to a whole number of a binary unit."""
    roomy = size * 11 // 10 + 1
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if roomy >= 10 * factor:
            return f"{-(-roomy // factor)}{unit}"
    return f"{-(-roomy // 1024)}KiB"


def _size(size: int | None) -> str:
    return UNKNOWN if size is None else format_size(size)
