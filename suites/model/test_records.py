"""Records: found by name, told by severity, copied and never changed."""

from __future__ import annotations

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.model.windows import Window

CARD, CPU = Device("cuda", 0), Device("cpu")
FAILS, WARNS = (
    Finding(Kind.BUDGET, Verdict.OVER, severity, Reported(f"cudamem: {severity.value}"))
    for severity in (Severity.FAIL, Severity.WARN)
)
RECORD = TestRecord(
    "a.py::test_b",
    "failed",
    windows=(Window("setup", CARD, 1), Window("call", CARD, 2, 4, 3), Window("call", CPU, 5)),
    findings=(WARNS, FAILS),
)


def test_window_by_name_and_device() -> None:
    assert RECORD.window().start == 2
    assert RECORD.window("setup").start == 1
    assert RECORD.window("call", "cpu").start == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("decode",), "a.py::test_b has no window 'decode' on any device"),
        (("setup", "cpu"), "a.py::test_b has no window 'setup' on cpu"),
    ],
)
def test_a_window_that_is_not_there(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(KeyError) as caught:
        RECORD.window(*arguments)
    assert caught.value.args == (message,)


def test_only_a_failing_finding_fails() -> None:
    assert RECORD.failing == (FAILS,)


def test_but_copies() -> None:
    other = RECORD.but(outcome="passed")
    assert (other.outcome, RECORD.outcome) == ("passed", "failed")
    assert other.windows is RECORD.windows
    with pytest.raises(AttributeError):
        other.outcome = "x"  # type: ignore[misc]


def test_as_text() -> None:
    assert str(RECORD) == (
        "a.py::test_b failed\n"
        "setup on cuda:0: start 1 B, peak ?, end ?\n"
        "call on cuda:0: start 2 B, peak 4 B, end 3 B\n"
        "call on cpu: start 5 B, peak ?, end ?\n"
        "budget, over budget, warn\n"
        "budget, over budget, fail"
    )


def test_the_last_record_of_a_test() -> None:
    run = RunRecord(tests=(RECORD, RECORD.but(attempt=2), TestRecord("a.py::test_c")))
    assert run.test("test_b").attempt == 2
    assert run.test("a.py::test_c").nodeid == "a.py::test_c"
    with pytest.raises(KeyError) as caught:
        run.test("test_d")
    assert caught.value.args == ("no test 'test_d' among ['a.py::test_b', 'a.py::test_b', 'a.py::test_c']",)
