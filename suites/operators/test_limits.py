"""Budgets of phases and modules, exact in value and in words."""

from __future__ import annotations

import pytest

from cudamem_testing import LimitError, OverBudget
from cudamem_testing.operators.limits import windows_of
from cudamem_testing.operators.rows import BETWEEN
from cudamem_testing.operators.table import OperatorTable
from suites.operators.synthetic import BACKWARD, FORWARD, KIB, Maker, step


def window(table: OperatorTable, phase: str | None = None, module: str | None = None) -> tuple[object, ...]:
    """Name, start, peak, end, retained, allocations."""
    (found,) = windows_of(table, phase, module)
    return found.name, found.start, found.peak_growth, found.end, found.retained, found.allocations


def test_windows() -> None:
    table = step().table()
    start = 10 * KIB
    kept = 7 * KIB + 104
    assert window(table) == ("all operators", start, 28 * KIB + 108, start + 7 * KIB + 108, 7 * KIB + 108, 8)
    assert window(table, "forward") == ("forward", start, 9 * KIB + 104, start + kept, kept, 4)
    assert window(table, "backward") == ("backward", start + kept + 4, 8 * KIB, start + kept + 4 + 5 * KIB, 5 * KIB, 2)
    # A module runs in two places; the window is of the run that rose highest, and counts both.
    assert window(table, None, "body") == ("module body", start, 8 * KIB, None, 12 * KIB, 3)
    assert window(table, "forward", "body") == ("forward of module body", start, 8 * KIB, None, 8 * KIB, 2)
    assert window(table, None, "head")[2:] == (2 * KIB, None, 3 * KIB + 100, 2)


def test_changes_between_operators_count_in_their_run() -> None:
    maker = Maker()
    maker.add("mm", "a", FORWARD, 8).add(BETWEEN, None, FORWARD, 0, 8).add("mm", "a", FORWARD, 4)
    maker.add(BETWEEN, None, FORWARD, 0, 4).add("mm", "b", FORWARD, 1)
    table = maker.table()
    assert window(table, None, "a") == ("module a", 0, 8, None, 12, 2)
    assert window(table, "forward") == ("forward", 0, 8, 1, 1, 3)


def test_a_phase_that_runs_twice() -> None:
    maker = Maker().add("mm", "a", FORWARD, 8).add("mm", "a", BACKWARD, 0, 8)
    maker.add("mm", "a", FORWARD, 16).add("mm", "a", BACKWARD, 0, 16)
    table = maker.table()
    assert window(table, "forward") == ("forward", 0, 16, None, 24, 2)
    assert window(table, "backward") == ("backward", 8, 0, None, -24, 0)


def test_budgets_hold_and_break() -> None:
    table = step().table()
    table.assert_budget(phase="forward", peak=9 * KIB + 104, retained="8KiB", at_least={"retained": "7KiB"})
    table.assert_budget(module="body.*", peak="8KiB", allocations=3)
    table.assert_budget(phase="backward", peak={"cuda": 1, "cpu": "8KiB"})
    with pytest.raises(OverBudget) as caught:
        table.assert_budget(phase="backward", peak="6KiB")
    assert str(caught.value).splitlines() == [
        "cudamem: peak 8.0 KiB above start is over its budget of 6.0 KiB by 2.0 KiB (backward, cpu)",
        "start 17.1 KiB, peak 25.1 KiB, end 22.1 KiB",
        "call  operator             module  phase     allocated    freed  temporary     after",
        "   7  aten::mm             body.0  backward    8.0 KiB  4.0 KiB    3.0 KiB  12.1 KiB",
        "   6  aten::mm             head    backward    2.0 KiB        -          -   9.1 KiB",
        "      (between operators)                            -  1.0 KiB          -  -1.0 KiB",
        "      total                                   10.0 KiB  5.0 KiB    3.0 KiB   5.0 KiB",
    ]
    with pytest.raises(OverBudget, match=r"^cudamem: retained 12.0 KiB is over its budget of 1.0 KiB by 11.0 KiB"):
        table.assert_budget(module="body", retained="1KiB")
    with pytest.raises(OverBudget, match=r"^cudamem: peak 2.0 KiB above start is under its lower bound of 1.0 MiB"):
        table.assert_budget(module="head", at_least="1MiB")
    with pytest.raises(OverBudget, match=r"^cudamem: peak 19.1 KiB is over its budget of 19.0 KiB by 108 B"):
        table.assert_budget(module="head", peak="19KiB", absolute=True)


def test_wrong_arguments() -> None:
    table = step().table()
    with pytest.raises(ValueError, match=r"^no operator ran in forward of module decoder \(phases that ran: forward, "):
        table.assert_budget(phase="forward", module="decoder", peak=1)
    with pytest.raises(LimitError, match=r"^sets no limit"):
        table.assert_budget(phase="forward")
    with pytest.raises(LimitError, match=r"^peak: size 'lots' is not understood"):
        table.assert_budget(phase="forward", peak="lots")


def test_unknown_peaks_are_not_judged() -> None:
    table = Maker().add("mm", "a", FORWARD, 8, peak=None).table()
    assert window(table, "forward") == ("forward", 0, None, 8, 8, 1)
    table.assert_budget(phase="forward", peak=0)
    with pytest.raises(OverBudget):
        table.assert_budget(phase="forward", retained=7)
