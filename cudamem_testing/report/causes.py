"""Findings by cause: for the terminal, and for the end of an audit.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudamem_testing.model.causes import Cause, causes, key_of
from cudamem_testing.model.findings import Kind, Severity, Standing, Verdict
from cudamem_testing.model.options import recording_command
from cudamem_testing.model.records import RunRecord
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.records.known import Lines, last_matches
from cudamem_testing.show.printable import LONGEST_LINE, one_line
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.wording.cycles import to_ignore
from cudamem_testing.wording.findings import headline, text
from cudamem_testing.wording.meanings import reason

if TYPE_CHECKING:
    from cudamem_testing.verdicts.policy import Policy

MOST = 3


def kind_lines(run: RunRecord) -> list[tuple[str, bool]]:
    """One line for each kind of finding that fails or warns, and whether it fails."""
    expected = {test.nodeid for test in run.tests if test.outcome == "xfailed"}
    where: dict[tuple[str, str, str], list[str]] = {}
    for nodeid, finding in run.all_findings:
        if finding.severity is not Severity.NOTE:
            word = "xfail" if nodeid in expected else "warning" if finding.severity is Severity.WARN else ""
            where.setdefault((word, finding.kind.value, reason(finding)), []).append(nodeid)
    lines = []
    for (word, kind, verdict), nodeids in sorted(where.items()):
        tests = len({*nodeids} - {""})
        places = ([count(tests, "test")] if tests else []) + (["the run itself"] if "" in nodeids else [])
        what = f"{verdict}, {word}" if word else verdict
        line = f"{kind}: {count(len(nodeids), 'finding')} ({what}) in {' and '.join(places)}"
        lines.append((line, not word))
    return lines


def texts_of_run(run: RunRecord) -> list[str]:
    """The findings of the run itself that fail it, in full: pytest shows those of tests."""
    failing = [finding for finding in run.findings if finding.severity is Severity.FAIL]
    return [line for finding in failing for line in text(finding).splitlines()]


def cause_lines(run: RunRecord, width: int | None, most: int = MOST) -> list[str]:
    """The causes that fail or warn, where one of them has several findings; ``width`` is that of a terminal."""
    found = _open(causes(run))
    if sum(cause.findings for cause in found) == len(found):
        return []
    table = _table(found[:most]).lines(width or LONGEST_LINE, header=False, indent=2)
    return [f"{_total(found)}:", *table, *_rest(found, most)]


def warning_lines(run: RunRecord, most: int = MOST) -> list[str]:
    """A line for each cause that warns, because pytest shows only failures; a second one is not to be wrapped."""
    found = [cause for cause in _open(causes(run)) if cause.severity is Severity.WARN]
    lines = _of_skipped_tests(run, most)
    for cause in found[:most]:
        where = one_line(cause.tests[0]) if cause.tests else "the run itself"
        others = f" and {count(len(cause.tests) - 1, 'more test')}" if len(cause.tests) > 1 else ""
        said = headline(cause.example)
        by = cause.example.holder or cause.example.allocated
        line = one_line(f"warning: {where}{others}: {said}{f': {by}' if by else ''}")
        lines.append("\n".join(filter(None, (line, one_line(to_ignore(cause.example))))))
    return lines + [line.strip() for line in _rest(found, most)]


def _of_skipped_tests(run: RunRecord, most: int) -> list[str]:
    """A line for each limit that a test broke before it skipped itself."""
    found = [
        f"warning: {one_line(test.nodeid)} was skipped after it broke a limit: {one_line(headline(one))}"
        for test in run.tests
        if test.outcome == "skipped"
        for one in test.findings
        if one.severity is Severity.WARN and key_of(one) is None
    ]
    return [
        *found[:most],
        *([f"... {len(found) - most} more were skipped after they broke a limit"] if len(found) > most else []),
    ]


def known_lines(run: RunRecord) -> list[str]:
    """How many findings are known."""
    known = _known(causes(run))
    return [f"known: {_counts(known)}"] if known else []


def audit_of_run(run: RunRecord, arguments: Sequence[str], policy: Policy | None) -> list[str]:
    """What an audit ends with; ``arguments`` are those of the command line, ``policy`` judged the run."""
    lines = audit_lines(run, recording_command(arguments))
    return lines if policy is None else [*lines, *matched_lines(policy.lines, run, policy.name)]


def audit_lines(run: RunRecord, command: str, most: int = MOST) -> list[str]:
    """What an audit ends with: the largest causes, one finding of each in full, and the command that records them."""
    found = _open(causes(run))
    if not found:
        return ["audit: nothing was found that is not known"]
    lines = [f"audit: {_total(found)}; no test fails for that"]
    for number, cause in enumerate(found[:most], 1):
        where = f" first in {one_line(cause.tests[0])}" if cause.tests else ""
        lines.append(f"{number}. {_tests(cause)}, {format_size(cause.bytes)},{where}")
        lines += text(cause.example).split("\n")
    return [*lines, *_rest(found, most), "to record them as known:", f"  {command}"]


def matched_lines(lines: Lines, run: RunRecord, name: str) -> list[str]:
    """For an audit: the last cause that each line of known findings matched, and its test."""
    last = last_matches(lines, run)
    found = [f"{count(len(lines), 'line')} of known findings, with what each matched last:"] if lines else []
    for line in sorted(lines.values(), key=lambda line: line.number):
        cause, nodeid = last.get(line.key, ("", ""))
        what = f"{cause} in " if cause and line.is_pattern else ""
        met = f"{what}{one_line(nodeid) or 'the run itself'}" if cause else "nothing"
        found += [f"  {name}:{line.number}: {line.cause} ({line.device})", f"    {met}"]
    return found


def _open(found: Sequence[Cause]) -> list[Cause]:
    return [cause for cause in found if cause.severity is not Severity.NOTE]


def _known(found: Sequence[Cause]) -> list[Cause]:
    return [cause for cause in found if cause.standing is Standing.KNOWN]


def _total(found: Sequence[Cause]) -> str:
    """``47 tests, 2 causes``."""
    tests = {nodeid for cause in found for nodeid in cause.tests}
    return f"{count(len(tests), 'test')}, {count(len(found), 'cause')}"


def _counts(known: Sequence[Cause]) -> str:
    return f"{count(sum(cause.findings for cause in known), 'finding')} of {count(len(known), 'cause')}"


def _tests(cause: Cause) -> str:
    return count(len(cause.tests), "test") if cause.tests else "the run itself"


def _rest(found: Sequence[Cause], most: int) -> list[str]:
    return [f"  ... {count(len(found) - most, 'more cause')}"] if len(found) > most else []


def _table(some: Sequence[Cause]) -> Table:
    columns = (
        Column("tests", "right"),
        Column("bytes", "right"),
        Column("fault"),
        Column("allocated in, held by", elastic=True, code=True),
    )
    rows = ((_tests(one), format_size(one.bytes), _fault(one), one.place) for one in some)
    return Table(columns, tuple(rows))


def _fault(cause: Cause) -> str:
    return _words(cause.kind, cause.verdict, cause.severity, cause.standing)


def _words(kind: Kind, verdict: Verdict, severity: Severity, standing: Standing | None) -> str:
    """What is wrong: ``leak, reachable``, ``cycle, warning``."""
    words = [kind.value]
    words += [verdict.value] if verdict.value != kind.value else []
    words += ["warning"] if severity is Severity.WARN else []
    words += [standing.value] if standing is not None else []
    return ", ".join(words)
