"""Turns facts into text: titles and details of findings, with hints, notes and explanations. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cudamem_testing.model import facts
from cudamem_testing.model.findings import Finding
from cudamem_testing.show.printable import printable, short_lines
from cudamem_testing.wording import baselines, cycles, leaks, limits, memory, outside, recovery, remarks

_PREFIX = "cudamem: "
#: What makes the lines of a finding, by the type of its fact; the first line is its title.
_LINES: dict[type, Callable[[Finding, Any], list[str]]] = {
    facts.OverLimit: limits.over_limit,
    facts.Outgrew: limits.outgrew,
    facts.Changed: baselines.changed,
    facts.NoBaseline: baselines.no_baseline,
    facts.Retained: leaks.retained,
    facts.FreedBy: leaks.freed_by,
    facts.FixtureGrew: leaks.fixture_grew,
    facts.LeftOver: leaks.left_over,
    facts.CycleKept: cycles.cycle_kept,
    facts.NotExplained: cycles.not_explained,
    facts.OutOfMemory: memory.out_of_memory,
    facts.Refused: memory.refused,
    facts.NotRecovered: recovery.not_recovered,
    facts.NotTried: recovery.not_tried,
    facts.EmptyPool: memory.empty_pool,
    facts.CompilerPool: memory.compiler_pool,
    facts.OutsideGrew: outside.outside_grew,
    facts.NotRepeatable: remarks.not_repeatable,
    facts.NotJudged: remarks.not_judged,
}


def text(finding: Finding) -> str:
    """The whole text of a finding: its title, and the details below it."""
    return "\n".join((title(finding), *details(finding)))


def texts(findings: Iterable[Finding]) -> str:
    """The texts of several findings, one below the other."""
    return "\n".join(map(text, findings))


def title(finding: Finding) -> str:
    """The first line of a finding, such as ``cudamem: 12.0 MiB leaked (1 block, cuda:0)``."""
    fact = finding.fact
    return short_lines(fact.message if isinstance(fact, facts.Reported) else f"{_PREFIX}{headline(finding)}")


def headline(finding: Finding) -> str:
    """The same without ``cudamem:``, for a line that begins with something else."""
    fact = finding.fact
    if isinstance(fact, facts.Reported):
        return fact.message.removeprefix(_PREFIX)
    owner = "" if finding.owner is None else f"{finding.owner}: "
    return printable(f"{owner}{_LINES[type(fact)](finding, fact)[0]}")


def details(finding: Finding) -> tuple[str, ...]:
    """The lines below the title: safe to print, also with quoted text, and none very long."""
    fact = finding.fact
    lines = fact.details if isinstance(fact, facts.Reported) else _LINES[type(fact)](finding, fact)[1:]
    return tuple(map(short_lines, (*lines, *map(remarks.remark, finding.remarks))))


def same_cause(finding: Finding, first: str) -> str:
    """One line for a finding whose cause has been shown in full; ``first`` is the test where it was shown."""
    return f"{title(finding)}: the same cause as in {short_lines(first)}"
