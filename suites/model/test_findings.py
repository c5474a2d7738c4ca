"""Findings: closed lists whose words stand in reports for good, and a text of several lines."""

from __future__ import annotations

from dataclasses import replace

from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.wording.findings import details, text, title


def test_the_words_of_the_report() -> None:
    assert [kind.value for kind in Kind] == [
        "leak",
        "cycle",
        "budget",
        "baseline",
        "oom",
        "pool",
        "outside allocator",
        "other",
    ]
    assert [severity.value for severity in Severity] == ["fail", "warn", "note"]


def test_the_verdicts_of_limits() -> None:
    assert {Verdict.OVER.value, Verdict.UNDER.value, Verdict.NOT_REPEATABLE.value} == {
        "over budget",
        "under lower bound",
        "body is not repeatable",
    }


def test_as_text() -> None:
    finding = Finding(Kind.BUDGET, Verdict.OVER, Severity.FAIL, Reported("first", ("second", "third")))
    assert text(finding) == "first\nsecond\nthird"
    assert text(Finding(Kind.OTHER, Verdict.NOT_REPEATABLE, Severity.NOTE, Reported("alone"))) == "alone"
    assert str(replace(finding, bytes=1024)) == "budget, over budget, fail of 1.0 KiB"


def test_lines_are_safe_to_show_and_short() -> None:
    finding = Finding(
        Kind.LEAK,
        Verdict.REACHABLE,
        Severity.FAIL,
        Reported("leaked \x1b[2J", ("   " + "(me, other)" * 1_000, "two\nlines\r", "cut \ud800")),
        allocated="a.py:1 in f\rFAKE",
        holder="module m > \u202egpj",
        cause="leak | \x1b",
    )
    assert (title(finding), finding.allocated, finding.holder) == (
        r"leaked \x1b[2J",
        r"a.py:1 in f\rFAKE",
        r"module m > \u202egpj",
    )
    long, *rest = text(finding).split("\n")[1:]
    assert (len(long), long[:8], long[-8:]) == (300, "   (me, ", ", other)")
    assert rest == ["two", r"lines\r", r"cut \ud800"]
    assert finding.cause == "leak | \x1b"  # a key, compared with others


def test_short_and_plain_lines_stay_as_they_are() -> None:
    given = ("   1.0 KiB  größe.py:1 in f\t# 東京", "x" * 300)
    finding = Finding(Kind.LEAK, Verdict.REACHABLE, Severity.FAIL, Reported("leaked", given), holder="y" * 999)
    assert (details(finding), finding.holder) == (given, "y" * 999)
