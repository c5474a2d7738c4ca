"""Findings: closed lists whose words stand in reports for good, and a text of several lines."""

from __future__ import annotations

from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict


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
    finding = Finding(Kind.BUDGET, Verdict.OVER, Severity.FAIL, "first", details=("second", "third"))
    assert str(finding) == "first\nsecond\nthird"
    assert str(Finding(Kind.OTHER, Verdict.NOT_REPEATABLE, Severity.NOTE, "alone")) == "alone"
