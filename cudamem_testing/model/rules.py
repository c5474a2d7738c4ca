"""Rules of the ini option ``cudamem_ignore``: what the project ignores, each with its reason.

A rule is one line of the ini option ``cudamem_ignore``: a field (``holder``, ``file`` or ``function``), a pattern (all
of the text; ``*`` is anything, ``?`` any one character), and after ``#`` the reason::

    cudamem_ignore =
        holder: module legacy.cache > *      # global by design, removed in the rewrite
        file: vendor/*.py                    # not ours
        function: build_tables               # built once

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cudamem_testing.model.facts import Retained
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.stacks import NO_STACK

#: Longest pattern that is suggested, so that its line is not cut.
LONGEST_PATTERN = 220
_DEPTH = re.compile(r"(?:traceback\.tb_next -> )+")
_RULE = re.compile(r"\s*(holder|file|function)\s*:\s*(.*?)\s+#\s*(\S.*?)\s*")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule and its reason."""

    field: str
    pattern: str
    reason: str

    def matches(self, finding: Finding) -> bool:
        """Whether the rule matches the finding."""
        if self.field == "holder":
            return finding.holder is not None and _matches(finding.holder, self.pattern)
        line = finding.fact.line if isinstance(finding.fact, Retained) else None
        if self.field == "file":
            return _matches(NO_STACK if line is None else line.file, self.pattern)
        function = "" if line is None else line.function
        return _matches(function, self.pattern) or _matches(function.rpartition(".")[2], self.pattern)

    def __str__(self) -> str:
        return f"{self.field}: {self.pattern}"


def _matches(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern, in which only ``*`` and ``?`` are special: holders are full of brackets."""
    pieces = (".*" if sign == "*" else "." if sign == "?" else re.escape(sign) for sign in pattern)
    return re.fullmatch("".join(pieces), text, re.DOTALL) is not None


def parse_rules(lines: Iterable[str]) -> tuple[Rule, ...]:
    """The rules of an ini option.

    Raises:
        RuleError: that names every line that is not a rule.
    """
    rules, problems = [], []
    for line in filter(None, map(str.strip, lines)):
        match = _RULE.fullmatch(line)
        if match is None or not match[2]:
            problems.append(f"{line!r} is not FIELD: PATTERN  # REASON with a field of holder, file, function")
        else:
            rules.append(Rule(match[1], match[2], match[3]))
    if problems:
        raise RuleError(problems)
    return tuple(rules)


class RuleError(ValueError):
    """Wrong rules, one problem per line in ``problems``."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class Ignored:
    """Applies rules, and counts what each one ignored."""

    def __init__(self, rules: Sequence[Rule], counts: Counter[str] | None = None) -> None:
        self.rules = tuple(rules)
        self.counts: Counter[str] = Counter() if counts is None else counts

    def keep(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings that no rule matches."""
        kept = []
        for finding in findings:
            rule = next((rule for rule in self.rules if rule.matches(finding)), None)
            if rule is None:
                kept.append(finding)
            else:
                self.counts[str(rule)] += 1
        return kept


def pattern_of(holder: str) -> str:
    """The pattern of a rule for one holder, with wildcards for its positions, the depth of its tracebacks, and its
    middle if it is very long.
    """
    text = re.sub(r"\[\d+\]", "[*]", re.sub(r"(?<=hook )\d+", "*", _DEPTH.sub("*", holder)))
    if len(text) <= LONGEST_PATTERN:
        return text
    half = (LONGEST_PATTERN - 1) // 2
    return f"{text[:half]}*{text[-half:]}"
