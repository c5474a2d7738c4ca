"""Findings by cause, to the letter."""

from __future__ import annotations

from textwrap import dedent

from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Standing, Verdict
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.model.windows import Window
from cudamem_testing.report.causes import audit_lines, cause_lines, known_lines

KIB, MIB = 2**10, 2**20
CPU = Device("cpu")
COMMAND = "pytest --cudamem --cudamem-update=known"


def fault(
    name: str,
    size: int,
    severity: Severity = Severity.FAIL,
    standing: Standing | None = None,
    kind: Kind = Kind.LEAK,
    verdict: Verdict = Verdict.REACHABLE,
) -> Finding:
    cause = f"{kind.value} | {verdict.value} | {name}.py::put | module {name} > K (list)[*]"
    fact = Reported(f"cudamem: {size} B by {name}", ("   more",))
    return Finding(kind, verdict, severity, fact, size, Device("cpu"), cause=cause, standing=standing)


def measured(*findings: Finding) -> TestRecord:
    """A test that was measured whole."""
    return TestRecord("tests/test_x.py::test", windows=(Window("call", CPU, 0, 0, 0),), findings=findings)


def run(*findings: Finding) -> RunRecord:
    """A run of one test for each finding."""
    return RunRecord(
        tests=tuple(TestRecord(f"tests/test_{n}.py::test", findings=(one,)) for n, one in enumerate(findings))
    )


def text(lines: list[str]) -> str:
    assert all(line == line.rstrip() for line in lines)
    return "\n".join(lines) + "\n"


def exactly(expected: str) -> str:
    return dedent(expected.removeprefix("\n"))


KNOWN = fault("old", 9, Severity.NOTE, Standing.KNOWN)
MANY = run(
    *(fault("cache", 4 * MIB) for _ in range(47)),
    fault("loss", MIB),
    fault("loss", 2 * MIB, standing=Standing.LARGER),
    fault("loop", MIB, Severity.WARN, kind=Kind.CYCLE, verdict=Verdict.CYCLE),
    fault("memo", 512 * KIB, Severity.WARN, Standing.FIRST_USE),
    fault("hook", 8, verdict=Verdict.HELD_BY_CPP),
    KNOWN,
    KNOWN,
)


class TestTerminal:
    """The lines of the summary."""

    def test_many(self) -> None:
        assert text(cause_lines(MANY, 120)) == exactly("""
            52 tests, 5 causes:
              47 tests  188.0 MiB  leak, reachable                     cache.py::put | module cache > K (list)[*]
               2 tests    3.0 MiB  leak, reachable, larger than known  loss.py::put | module loss > K (list)[*]
                1 test    1.0 MiB  cycle, warning                      loop.py::put | module loop > K (list)[*]
              ... 2 more causes
            """)
        assert known_lines(MANY) == ["known: 2 findings of 1 cause"]
        assert known_lines(run(fault("a", 1))) == []

    def test_a_narrow_terminal(self) -> None:
        assert all(len(line) <= 80 for line in cause_lines(MANY, 80))

    def test_a_long_cause_is_cut_where_there_is_no_terminal(self) -> None:
        long = run(*(fault("cache" + "_" * 400, 4 * MIB) for _ in range(2)))
        (_, line) = cause_lines(long, None)
        assert (len(line), line[-9:], "..." in line) == (300, "(list)[*]", True)

    def test_faults_that_have_nothing_in_common_are_not_listed(self) -> None:
        assert cause_lines(run(fault("a", 1), fault("b", 2)), 80) == []
        assert cause_lines(RunRecord(), 80) == []
        assert cause_lines(run(KNOWN, KNOWN), 80) == []

    def test_faults_of_the_run_itself(self) -> None:
        assert cause_lines(RunRecord(findings=(fault("a", 1),) * 2), 80) == [
            "0 tests, 1 cause:",
            "  the run itself  2 B  leak, reachable  a.py::put | module a > K (list)[*]",
        ]


class TestAudit:
    """What an audit ends with."""

    def test_the_largest_causes_with_an_example(self) -> None:
        assert text(audit_lines(MANY, COMMAND, most=2)) == exactly("""
            audit: 52 tests, 5 causes; no test fails for that
            1. 47 tests, 188.0 MiB, first in tests/test_0.py::test
            cudamem: 4194304 B by cache
               more
            2. 2 tests, 3.0 MiB, first in tests/test_47.py::test
            cudamem: 2097152 B by loss
               more
              ... 3 more causes
            to record them as known:
              pytest --cudamem --cudamem-update=known
            """)
        assert audit_lines(RunRecord(findings=(fault("a", 1),)), COMMAND)[1] == "1. the run itself, 1 B,"

    def test_nothing_new(self) -> None:
        assert audit_lines(run(KNOWN), COMMAND) == ["audit: nothing was found that is not known"]
