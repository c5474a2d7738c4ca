"""First use: once for each cause, only for what a module, a class or a cache holds."""

from __future__ import annotations

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.edges import Kind
from cudamem_testing.model.facts import Allocation, Retained, RetainedBlock
from cudamem_testing.model.findings import Finding, Severity, Standing, Verdict
from cudamem_testing.model.findings import Kind as FaultKind
from cudamem_testing.model.references import Path, Reach, RootKind
from cudamem_testing.verdicts.first_use import FirstUse
from cudamem_testing.wording.findings import details
from suites.made import path

CPU = Device("cpu")
HOLDER = path("module a", (Kind.GLOBAL, "TABLE", "dict"), (Kind.ITEM, "['x']", "Tensor"))


def leak(
    cause: str | None = "c",
    holder: Path | None = HOLDER,
    severity: Severity = Severity.FAIL,
    verdict: Verdict = Verdict.REACHABLE,
) -> Finding:
    block = RetainedBlock(1, None, Allocation(), Reach.REACHABLE, holder)
    return Finding(FaultKind.LEAK, verdict, severity, Retained((block,), 1), 1, device=CPU, cause=cause)


def outcome(check: FirstUse, *findings: Finding) -> list[tuple[Severity, Standing | None]]:
    return [(one.severity, one.standing) for one in check.judged(findings)]


def test_the_first_of_a_cause_warns_and_the_next_fails() -> None:
    check = FirstUse()
    (first,) = check.judged([leak()])
    assert (first.severity, first.standing) == (Severity.WARN, Standing.FIRST_USE)
    assert details(first)[-1] == "   first use: fails if the same cause keeps more later"
    assert outcome(check, leak()) == [(Severity.FAIL, None)]
    assert outcome(check, leak("other")) == [(Severity.WARN, Standing.FIRST_USE)]


def test_two_devices_in_one_test_are_one_use() -> None:
    assert outcome(FirstUse(), leak(), leak()) == [(Severity.WARN, Standing.FIRST_USE)] * 2


def test_a_warning_of_a_failed_test_counts_as_the_first() -> None:
    check = FirstUse()
    assert outcome(check, leak(severity=Severity.WARN)) == [(Severity.WARN, Standing.FIRST_USE)]
    assert outcome(check, leak()) == [(Severity.FAIL, None)]


def test_a_note_stays_a_note() -> None:
    assert outcome(FirstUse(), leak(severity=Severity.NOTE)) == [(Severity.NOTE, Standing.FIRST_USE)]


def test_a_cause_on_record_is_no_first_use() -> None:
    check = FirstUse()
    finding = leak(cause="leak | c")
    assert check.judged([finding], {("leak | c", "cpu")}) == [finding]
    assert [one.standing for one in check.judged([finding], {("leak | c", "cuda")})] == [None]  # it was met


@pytest.mark.parametrize("holder", [path("class a.Registry"), path("lru_cache of a.table"), HOLDER])
def test_who_may_hold_it(holder: Path) -> None:
    assert outcome(FirstUse(), leak(holder=holder)) == [(Severity.WARN, Standing.FIRST_USE)]


@pytest.mark.parametrize(
    "finding",
    [
        leak(holder=path("thread worker > frame run", kind=RootKind.FRAME)),
        leak(holder=None),
        leak(cause=None),
        leak(verdict=Verdict.HELD_BY_CPP),
        leak(verdict=Verdict.TEST_INSTANCE),
    ],
)
def test_what_is_no_cache(finding: Finding) -> None:
    assert FirstUse().judged([finding]) == [finding]
