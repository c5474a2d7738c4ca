"""The terminal summary: what the run measured, and which tests cost most. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from cudamem_testing.model.findings import Severity, Verdict
from cudamem_testing.model.nodeids import function_of
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.model.sizes import count, format_size, from_to
from cudamem_testing.model.windows import Window
from cudamem_testing.report.failures import failure_lines, notes, unchecked_lines
from cudamem_testing.show.printable import one_line, printable
from cudamem_testing.show.tables import Column, Table

#: Verdicts of memory that is retained and no leak.
KEPT = (Verdict.TEST_INSTANCE, Verdict.COMPILER_CACHE, Verdict.FIXTURE, Verdict.HARNESS)
FOLDED = 3
"""Parameters of a test from which on they are one row of the table."""
PAGE = 4096
"""Bytes of the smallest use of pinned memory that has a row."""
Row = tuple[TestRecord, Window]
UNKNOWN = "?"
NONE = "-"
RESERVED, BUDGET, DEVICE = Column("reserved", "right"), Column("budget", "right"), Column("device")
COLUMNS = (
    Column("peak", "right"),
    RESERVED,
    Column("retained", "right"),
    Column("allocs", "right"),
    BUDGET,
    DEVICE,
    Column("test", elastic=True, paths=True),
)


class SummaryLine(NamedTuple):
    """A line of the summary; what fails is red, what warns yellow."""

    text: str
    colour: str = ""


RED, YELLOW = "red", "yellow"


def summary_lines(
    run: RunRecord, *, top: int, width: int, offers: int = 3, grouped: bool = True, cut: bool = True
) -> list[SummaryLine]:
    """The summary: failures of the run, findings, the table of the ``top`` tests, totals, and budgets to paste.

    Text is wrapped at ``width`` characters. Tables are as wide as needed, or names in them are ``cut`` to their last
    part. ``grouped`` is false if the causes of the findings are printed elsewhere.
    """
    most = width if cut else None
    measured = [test for test in run.tests if test.windows]
    lines = _failures(run, width) if run.failures else []
    lines += _findings(run, width, most, grouped) if run.all_findings else []
    rows = folded(ranked(measured))
    if top and rows:
        lines += map(SummaryLine, _table(rows[:top]).lines(most))
        if len(rows) > top:
            lines.append(SummaryLine(f"... {len(rows) - top} more (--cudamem-top={len(rows)} shows them)"))
    lines += _wrapped([total_line(run, measured), *_processes(measured)], width)
    lines += _unchecked(run, width) if run.unenforced or run.unchecked else []
    lines += _wrapped(_retained(run), width)
    lines += _notes(run, width) if run.notes or run.unseen.causes else []
    if top:
        lines += map(SummaryLine, _offers(measured, offers))
    return lines


def _failures(run: RunRecord, width: int) -> list[SummaryLine]:
    return _wrapped(failure_lines(run.failures), width, RED)


def _unchecked(run: RunRecord, width: int) -> list[SummaryLine]:
    return _wrapped(unchecked_lines(run), width, YELLOW)


def _notes(run: RunRecord, width: int) -> list[SummaryLine]:
    return _wrapped((f"note: {note}" for note in notes(run)), width, YELLOW)


def _findings(run: RunRecord, width: int, most: int | None, grouped: bool) -> list[SummaryLine]:
    from cudamem_testing.report.causes import cause_lines, kind_lines, known_lines, texts_of_run, warning_lines

    lines = [SummaryLine(line, RED if fails else YELLOW) for line, fails in kind_lines(run)]
    lines += map(SummaryLine, texts_of_run(run))
    if grouped:
        lines += map(SummaryLine, cause_lines(run, most))
        lines += _wrapped(warning_lines(run), width)
    return [*lines, *map(SummaryLine, known_lines(run))]


def ranked(tests: Iterable[TestRecord]) -> list[Row]:
    """The call window of each test and device, by peak above start, largest first; unknown ones last."""
    calls = [(test, window) for test in tests for window in test.windows if window.name == "call" and _counts(window)]
    return sorted(calls, key=_rank)


def folded(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one test and device with other parameters together, where these are several, at the largest one."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for test, window in rows:
        name, bracket, _ = test.nodeid.partition("[")
        found.setdefault((name, bracket, str(window.device)), []).append((test, window))
    kept: list[list[Row]] = []
    for (_, bracket, _), some in found.items():
        kept += [some] if bracket and len(some) >= FOLDED else [[one] for one in some]
    return sorted(kept, key=lambda some: _rank(some[0]))


def _rank(row: Row) -> tuple[bool, int]:
    growth = row[1].peak_growth
    return growth is None, -(growth or 0)


def _counts(window: Window) -> bool:
    """Pinned host memory has a row only where a page of it was used: each read of a number takes some bytes."""
    return not window.device.pseudo or (window.peak_growth or 0) >= PAGE


def _retained(run: RunRecord) -> list[str]:
    """One line about memory that tests retain without a leak."""
    sizes: dict[str, int] = {}
    tests: dict[str, set[str]] = {}
    for nodeid, finding in run.all_findings:
        if finding.severity is Severity.NOTE and finding.verdict in KEPT and finding.standing is None and finding.bytes:
            sizes[finding.verdict.value] = sizes.get(finding.verdict.value, 0) + finding.bytes
            tests.setdefault(finding.verdict.value, set()).add(nodeid)
    parts = [
        f"{format_size(size)} {verdict} in {count(len(tests[verdict]), 'test')}" for verdict, size in sizes.items()
    ]
    return [f"retained, no leak: {', '.join(parts)}"] if parts else []


def total_line(run: RunRecord, measured: Sequence[TestRecord]) -> str:
    """How many tests were measured on what, how many could not be, and how many never used torch."""
    devices = ", ".join(_together(run.environment.devices))
    unmeasured = sum(1 for test in run.tests if not test.windows and test.notes)
    unused = len(run.tests) - len(measured) - unmeasured
    rest = f"; {count(unused, 'test')} without torch" if unused else ""
    rest += f"; {count(unmeasured, 'test')} not measured" if unmeasured else ""
    incomplete = sum(1 for test in measured if any(not window.complete for window in test.windows))
    partly = f"; {incomplete} measured in part" if incomplete else ""
    said = f"measured {count(len(measured), 'test')} on {devices}" if devices else "nothing was measured"
    return f"{said}{rest}{partly}"


def _processes(measured: Sequence[TestRecord], most: int = 3) -> list[str]:
    """A line for each process of which nothing is known: its test was measured in part."""
    found = []
    for test in measured:
        for window in test.windows:
            process = window.name.rpartition(": ")[0]
            if process and not window.complete:
                why = "".join(window.notes[:1])
                found.append(one_line(f"measured in part: {test.nodeid}: {process}: {why}"))
    return [*found[:most], *([f"... {len(found) - most} more"] if len(found) > most else [])]


def _together(devices: Sequence[str]) -> list[str]:
    """Cards of one name in a row as one: ``cuda:0-7 (NVIDIA H100)``."""
    texts = []
    for (kind, name), cards in groupby(map(_parts, devices), key=lambda parts: (parts[0], parts[2])):
        indices = [index for _, index, _ in cards]
        last = f"-{indices[-1]}" if len(indices) > 1 else ""
        texts.append(kind + (f":{indices[0]}{last}" if indices[0] else "") + (f" {name}" if name else ""))
    return texts


def _parts(device: str) -> tuple[str, str, str]:
    place, _, name = device.partition(" ")
    kind, _, index = place.partition(":")
    return kind, index, name


def _table(rows: Sequence[Sequence[Row]]) -> Table:
    """One row a test and device, or all parameters of a test; columns that would hold nothing are left out."""
    seen: set[int] = set()
    cells = []
    for some in rows:
        test, window = some[0]
        retained = (next((one.retained for one in test.whole if one.device == at.device), None) for test, at in some)
        used = [test.budget_used for test, _ in some if test.budget_used is not None and id(test) not in seen]
        seen.update(id(test) for test, _ in some)
        several = f"{test.nodeid.partition('[')[0]}[...] x {len(some)}"
        cells.append(
            (
                _sizes([one.peak_growth for _, one in some]),
                _sizes([one.reserved_growth for _, one in some]) if window.device.has_segments else NONE,
                _sizes([*retained]),
                _range([one.allocations for _, one in some], str),
                _share(max(used)) if used else NONE,
                str(window.device),
                test.nodeid if len(some) == 1 else several,
            )
        )
    kept = [
        place
        for place, (column, column_cells) in enumerate(zip(COLUMNS, zip(*cells, strict=True), strict=True))
        if column not in (RESERVED, BUDGET) or {*column_cells} != {NONE}
        if column is not DEVICE or len({*column_cells}) > 1
    ]
    return Table(tuple(COLUMNS[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in cells))


def _share(used: float) -> str:
    """A share of a limit; of a limit of 0 it is in the millions, which says no more than ten times."""
    return f"{used:.0%}" if used < 10 else ">999%"


def _wrapped(lines: Iterable[str], width: int, colour: str = "") -> list[SummaryLine]:
    """Lines in pieces that fit, indented from the second on; only the first of each has the colour."""
    found = []
    for line in lines:
        first, *more = printable(line).split("\n")
        pieces = textwrap.wrap(first, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        found += [SummaryLine(piece, "" if place else colour) for place, piece in enumerate(pieces)]
        found += [SummaryLine(f"  {piece}") for piece in more]
    return found


def _offers(measured: Sequence[TestRecord], offers: int) -> list[str]:
    """A marker for each of the largest tests without a budget; all parameters of a test share theirs."""
    peaks: dict[str, int] = {}
    for test, window in ranked(test for test in measured if test.budget_used is None and test.outcome == "passed"):
        if window.peak_growth:
            peaks.setdefault(function_of(test.nodeid), window.peak_growth)
    lines = ["suggested budgets (current peak + 10 %):"] if peaks and offers else []
    for name, peak in [*peaks.items()][:offers]:
        lines += [f"  {one_line(name)}", f'    @pytest.mark.memory_budget(peak="{offered(peak)}")']
    return lines


def offered(size: int) -> str:
    """A budget for a measured peak: a tenth more, rounded up to a whole number of a binary unit."""
    roomy = size * 11 // 10 + 1
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if roomy >= 10 * factor:
            return f"{-(-roomy // factor)}{unit}"
    return f"{-(-roomy // 1024)}KiB"


def _sizes(sizes: Sequence[int | None]) -> str:
    """``33.0 MiB``, or of several ``12.9 to 40.1 MiB``."""
    return _range(sizes, format_size)


def _range(numbers: Sequence[int | None], text: Callable[[int], str]) -> str:
    known = [number for number in numbers if number is not None]
    if not known:
        return UNKNOWN
    both = from_to(text(min(known)), text(max(known)))
    return both if len(known) == len(numbers) else f"{both} or {UNKNOWN}"
