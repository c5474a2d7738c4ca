"""Causes: what is grouped and what is not, against a plain count."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.causes import causes
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Standing, Verdict
from cudamem_testing.model.records import RunRecord, TestRecord

CPU, CARD, SECOND = Device("cpu"), Device("cuda", 0), Device("cuda", 1)
TEXT = "leak | reachable | a.py::f | module a > KEPT (list)[*]"


def leak(
    size: int | None = 8,
    device: Device | None = CPU,
    severity: Severity = Severity.FAIL,
    standing: Standing | None = None,
    cause: str | None = TEXT,
    kind: Kind = Kind.LEAK,
) -> Finding:
    return Finding(
        kind, Verdict.REACHABLE, severity, Reported(f"{size} B"), size, device, cause=cause, standing=standing
    )


def test_findings_of_one_cause_are_one() -> None:
    run = RunRecord(
        tests=(
            TestRecord("a.py::test_b", findings=(leak(8), leak(4))),
            TestRecord("a.py::test_a", findings=(leak(9),)),
            TestRecord("a.py::test_c", findings=(leak(9),)),
        ),
        findings=(leak(None),),
    )
    (cause,) = causes(run)
    assert (cause.text, cause.device, cause.kind, cause.verdict) == (TEXT, "cpu", Kind.LEAK, Verdict.REACHABLE)
    assert (cause.bytes, cause.largest, cause.findings) == (30, 9, 5)
    assert cause.tests == ("a.py::test_b", "a.py::test_a", "a.py::test_c")
    assert cause.example is run.tests[1].findings[0]
    assert cause.place == "a.py::f | module a > KEPT (list)[*]"
    assert str(cause) == f"3 tests, 30 B: {TEXT} (cpu)"


def test_device_kinds_differ_and_cards_of_a_kind_do_not() -> None:
    run = RunRecord(findings=(leak(1, CPU), leak(2, CARD), leak(4, SECOND), leak(8, None)))
    assert [(cause.device, cause.bytes) for cause in causes(run)] == [("any", 8), ("cuda", 6), ("cpu", 1)]


def test_what_has_no_cause() -> None:
    run = RunRecord(
        findings=(
            leak(severity=Severity.NOTE),
            leak(cause=None),
            *(leak(kind=kind) for kind in (Kind.BUDGET, Kind.BASELINE, Kind.OOM, Kind.OTHER)),
        )
    )
    assert causes(run) == ()


def test_what_has_one() -> None:
    kinds = (Kind.LEAK, Kind.CYCLE, Kind.POOL, Kind.OUTSIDE)
    run = RunRecord(findings=tuple(leak(kind=kind, cause=kind.value, severity=Severity.WARN) for kind in kinds))
    assert [cause.kind for cause in causes(run)] == [Kind.CYCLE, Kind.LEAK, Kind.OUTSIDE, Kind.POOL]


def test_the_worst_counts() -> None:
    known = leak(severity=Severity.NOTE, standing=Standing.KNOWN)
    first = leak(severity=Severity.WARN, standing=Standing.FIRST_USE)
    larger = leak(standing=Standing.LARGER)

    def worst(*findings: Finding) -> tuple[Severity, Standing | None]:
        (cause,) = causes(RunRecord(findings=findings))
        return cause.severity, cause.standing

    assert worst(known) == (Severity.NOTE, Standing.KNOWN)
    assert worst(known, first) == (Severity.WARN, Standing.KNOWN)
    assert worst(first) == (Severity.WARN, Standing.FIRST_USE)
    assert worst(first, leak()) == (Severity.FAIL, None)
    assert worst(leak(), known, larger) == (Severity.FAIL, Standing.LARGER)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([CPU, CARD, SECOND]), st.integers(0, 9), st.integers(0, 4))
    )
)
def test_nothing_is_lost(findings: list[tuple[str, Device, int, int]]) -> None:
    tests = tuple(
        TestRecord(str(number), findings=(leak(size, device, cause=text),)) for text, device, size, number in findings
    )
    found = causes(RunRecord(tests=tests))
    sums: Counter[tuple[str, str]] = Counter()
    for text, device, size, _ in findings:
        sums[text, device.kind] += size
    assert {cause.key: cause.bytes for cause in found} == {key: sums[key] for key in sums}
    assert {cause.key: {*cause.tests} for cause in found} == {
        key: {str(number) for text, device, _, number in findings if (text, device.kind) == key} for key in sums
    }
    assert [cause.bytes for cause in found] == sorted(sums.values(), reverse=True)
    assert sum(cause.findings for cause in found) == len(findings)
