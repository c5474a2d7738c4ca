"""The report as Markdown, for a comment on a pull request: everything that failed, changed or was not checked.

A comment holds 65,536 characters. Findings that do not fit are counted.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from cudamem_testing.model.causes import Cause, causes, key_of
from cudamem_testing.model.findings import GROUPED, Finding, Kind, Severity, Standing, Verdict
from cudamem_testing.model.records import RunRecord
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.report.failures import failure_lines, unchecked_lines
from cudamem_testing.report.terminal import total_line
from cudamem_testing.show.printable import elide, one_line
from cudamem_testing.show.tables import elide_path, in_markdown
from cudamem_testing.wording.findings import details, headline
from cudamem_testing.wording.runs import verdict

MOST_CHARACTERS = 60_000
#: Lines of one finding, tests that are named for a cause, improvements, and characters of a name.
_LINES, _NAMED, _BETTER, _NAME = 14, 5, 50, 160
#: What is said of a finding that failed no test.
_UNFAILED = {"xfailed": ": the test is expected to fail", "skipped": ": the test was skipped"}
_TITLES = {
    Kind.OOM: "Out of memory",
    Kind.BUDGET: "Budgets",
    Kind.BASELINE: "Baselines",
    Kind.LEAK: "Leaks",
    Kind.CYCLE: "Cycles",
    Kind.POOL: "Pools of CUDA graphs",
    Kind.OUTSIDE: "Memory outside of the allocator",
    Kind.OTHER: "Other findings",
}


def markdown(run: RunRecord, most: int = MOST_CHARACTERS) -> str:
    """The report in at most about so many characters."""
    lines = [*failure_lines(run.failures, most=50), *unchecked_lines(run)]
    measured = [test for test in run.tests if test.windows]
    parts = [f"### Memory: {in_markdown(verdict(run)[1])}", "\n".join(f"- {in_markdown(line)}" for line in lines)]
    end = [_improved(run), _known(run), in_markdown(total_line(run, measured))]
    room = most - sum(map(len, (*parts, *end)))
    parts += [*_within(_sections(run), room), *end]
    return "\n\n".join(filter(None, parts)) + "\n"


def _within(sections: Iterable[list[str]], room: int) -> Iterator[str]:
    """The sections as far as there is room: a title, then its findings one by one."""
    left = 0
    for title, *findings in sections:
        shown: list[str] = []
        for one in findings:
            room -= len(one) + 2
            if room >= 0:
                shown.append(one)
        left += len(findings) - len(shown)
        if shown:
            yield "\n\n".join((title, "\n".join(shown)))
    if left:
        yield f"**{count(left, 'more finding')}**: a comment has no room for them; the report has"


def _sections(run: RunRecord) -> Iterator[list[str]]:
    """For each kind with a finding that fails or warns its title, and a text for each finding or cause."""
    open_ = [cause for cause in causes(run) if cause.severity is not Severity.NOTE]
    single = [
        (test, one) for test, one in run.all_findings if one.severity is not Severity.NOTE and key_of(one) is None
    ]
    unfailed = {test.nodeid: _UNFAILED.get(test.outcome, "") for test in run.tests}
    for kind, title in _TITLES.items():
        texts = [_of_cause(cause) for cause in open_ if cause.kind is kind]
        texts += [_of_finding(test, one, unfailed.get(test, "")) for test, one in single if one.kind is kind]
        if texts:
            tests = {test for test, one in run.all_findings if one.kind is kind and one.severity is not Severity.NOTE}
            noun = "cause" if kind in GROUPED else "finding"
            yield [f"#### {title}: {count(len(tests), 'test')}, {count(len(texts), noun)}", *texts]


def _of_finding(test: str, one: Finding, outcome: str = "") -> str:
    """A finding without a cause: its test, what is wrong, and the lines below."""
    words = _words(one.severity, one.standing)
    return _item(f"{_test(test)}: {in_markdown(headline(one))}{words}{outcome}", details(one))


def _of_cause(cause: Cause) -> str:
    """A cause: how much in how many tests, which they are, and one finding in full."""
    named = [*map(_test, cause.tests[:_NAMED])] or [_test("")]
    more = f" and {len(cause.tests) - _NAMED} more" if len(cause.tests) > _NAMED else ""
    size = f"{format_size(cause.bytes)} in {count(cause.findings, 'finding')}"
    what = f"**{size}**, {in_markdown(cause.verdict.value)}{_words(cause.severity, cause.standing)}"
    place = _code(elide(one_line(cause.place), 2 * _NAME))
    return _item(f"{what}: {place} in {', '.join(named)}{more}", (headline(cause.example), *details(cause.example)))


def _item(text: str, lines: Sequence[str]) -> str:
    """An item of a list with lines below it, as they are."""
    if not lines:
        return f"- {text}"
    shown = [*lines[:_LINES], *([f"... {count(len(lines) - _LINES, 'more line')}"] if len(lines) > _LINES else [])]
    pieces = [piece for line in shown for piece in line.split("\n")]
    fence = "`" * max(3, 1 + max((len(run) for piece in pieces for run in re.findall("`+", piece)), default=0))
    return "\n".join((f"- {text}", f"  {fence}", *(f"  {piece}" for piece in pieces), f"  {fence}"))


def _improved(run: RunRecord) -> str:
    """What takes less than its baseline."""
    better = [(test, one) for test, one in run.all_findings if one.verdict is Verdict.IMPROVED]
    if not better:
        return ""
    items = [f"- {_test(test)}: {in_markdown(headline(one))}" for test, one in better[:_BETTER]]
    items += [f"- {len(better) - _BETTER} more"] if len(better) > _BETTER else []
    title = f"#### Improved: {count(len({test for test, _ in better}), 'test')}"
    return "\n".join((title, "", *items, "", "Record it with `--cudamem-update=baselines`."))


def _known(run: RunRecord) -> str:
    known = [cause for cause in causes(run) if cause.standing is Standing.KNOWN]
    if not known:
        return ""
    return f"Known: {count(sum(cause.findings for cause in known), 'finding')} of {count(len(known), 'cause')}."


def _words(severity: Severity, standing: Standing | None) -> str:
    words = ["warning"] if severity is Severity.WARN else []
    words += [standing.value] if standing is not None else []
    return f" ({', '.join(words)})" if words else ""


def _test(nodeid: str) -> str:
    return _code(elide_path(one_line(nodeid), _NAME)) if nodeid else "the run itself"


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"
