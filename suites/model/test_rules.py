"""Rules of the ini option ``cudamem_ignore``."""

from __future__ import annotations

import pytest

from cudamem_testing.model.facts import Allocation, Retained, RetainedBlock
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.references import Reach
from cudamem_testing.model.rules import LONGEST_PATTERN, Ignored, Rule, RuleError, parse_rules, pattern_of
from cudamem_testing.model.stacks import Frame


def finding(allocated: str | None = None, holder: str | None = None) -> Finding:
    file, _, function = (allocated or "").partition(" in ")
    line = None if allocated is None else Frame(file.partition(":")[0], int(file.partition(":")[2] or 0), function)
    block = RetainedBlock(1, None, Allocation(line), Reach.REACHABLE)
    fact = Retained((block,), 1)
    return Finding(Kind.LEAK, Verdict.REACHABLE, Severity.FAIL, fact, allocated=allocated, holder=holder)


def test_parsing() -> None:
    assert parse_rules(
        ["  holder: module legacy > *   # removed in the rewrite ", "", "file:vendor/*.py # not ours"]
    ) == (
        Rule("holder", "module legacy > *", "removed in the rewrite"),
        Rule("file", "vendor/*.py", "not ours"),
    )


def test_a_pattern_may_hold_colons_and_quotes() -> None:
    (rule,) = parse_rules(["holder: module m > D (dict)['a: b'] # why: because"])
    assert (rule.pattern, rule.reason) == ("module m > D (dict)['a: b']", "why: because")


@pytest.mark.parametrize(
    "line", ["holder: x", "holder: x #", "holder:  # why", "where: x # why", "x # why", "holder x # why", "# why"]
)
def test_malformed(line: str) -> None:
    with pytest.raises(RuleError) as info:
        parse_rules(["file: good.py # fine", line])
    assert info.value.problems == (f"{line!r} is not FIELD: PATTERN  # REASON with a field of holder, file, function",)


def test_all_malformed_lines_are_named() -> None:
    with pytest.raises(RuleError) as info:
        parse_rules(["one", "two"])
    assert len(info.value.problems) == 2
    assert str(info.value) == "; ".join(info.value.problems)


@pytest.mark.parametrize(
    ("field", "pattern", "allocated", "holder", "matches"),
    [
        ("holder", "module m > *", None, "module m > X (list)[0]", True),
        ("holder", "module m", None, "module m > X (list)[0]", False),
        ("holder", "*", None, None, False),
        ("holder", "module m > X (list)[?]", None, "module m > X (list)[0]", True),
        ("holder", "module m > X (list)[?]", None, "module m > X (list)[10]", False),
        ("holder", "module m > X [!a]", None, "module m > X b", False),
        ("holder", "module m > X (list)[*]", None, "module m > X (list)[0]", True),
        ("holder", "module m > X (list)[0]", None, "module m > X (list)[0]", True),
        ("file", "vendor/*.py", "vendor/a/b.py:12 in f", None, True),
        ("file", "vendor/*.py", "mine.py:12 in vendor", None, False),
        ("file", "a.py", "a.py", None, True),
        ("file", "A.py", "a.py:1 in f", None, False),
        ("file", "*", None, None, True),
        ("function", "build", "a.py:1 in Table.build", None, True),
        ("function", "Table.build", "a.py:1 in Table.build", None, True),
        ("function", "Table.*", "a.py:1 in Table.build", None, True),
        ("function", "table", "a.py:1 in Table.build", None, False),
        ("function", "build", "build.py:1", None, False),
    ],
)
def test_matching(field: str, pattern: str, allocated: str | None, holder: str | None, matches: bool) -> None:
    assert Rule(field, pattern, "why").matches(finding(allocated, holder)) is matches


def test_ignored_findings_count_for_the_first_matching_rule() -> None:
    rules = parse_rules(["file: a.py # one", "function: f # two", "holder: never # three"])
    ignored = Ignored(rules)
    kept = ignored.keep(
        [finding("a.py:1 in f"), finding("b.py:2 in f"), finding("c.py:3 in g"), finding("a.py:9 in h")]
    )
    assert [one.allocated for one in kept] == ["c.py:3 in g"]
    assert dict(ignored.counts) == {"file: a.py": 2, "function: f": 1}


def test_the_pattern_of_a_holder_matches_it_and_its_like() -> None:
    holder = "ValueError.__traceback__ -> traceback.tb_next -> traceback.tb_next -> traceback.tb_frame -> frame f"
    assert pattern_of(f"{holder} -> list[0] -> hook 12") == (
        "ValueError.__traceback__ -> *traceback.tb_frame -> frame f -> list[*] -> hook *"
    )
    for tracebacks in (0, 1, 40):
        other = holder.replace("traceback.tb_next -> " * 2, "traceback.tb_next -> " * tracebacks)
        assert Rule("holder", pattern_of(holder), "").matches(finding(holder=other))
    assert not Rule("holder", pattern_of(holder), "").matches(finding(holder=f"{holder}f"))


@pytest.mark.parametrize("length", [LONGEST_PATTERN, LONGEST_PATTERN + 1, 1000])
def test_a_long_pattern_has_a_wildcard_for_its_middle(length: int) -> None:
    holder = "".join(f"Part{number} -> " for number in range(1000))[:length]
    pattern = pattern_of(holder)
    assert (len(pattern) <= LONGEST_PATTERN, "*" in pattern) == (True, length > LONGEST_PATTERN)
    assert Rule("holder", pattern, "").matches(finding(holder=holder))
