"""What a number off its baseline says, to the letter."""

from __future__ import annotations

import pytest

from cudamem_testing.model.changes import Change, Comparison, Spread, Tolerance
from cudamem_testing.model.devices import Device
from cudamem_testing.model.evidence import NoEvidence, Why
from cudamem_testing.model.facts import Changed, GrownPlace, Taken
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.stacks import Frame
from cudamem_testing.wording import details
from cudamem_testing.wording.baselines import off

CPU, MIB = Device("cpu"), 2**20


@pytest.mark.parametrize(
    ("metric", "before", "after", "text"),
    [
        (
            "requested",
            512 * MIB,
            612 * MIB,
            "requested 612.0 MiB above start is 100.0 MiB (+19.5%) above its baseline of 512.0 MiB, 5.1 MiB allowed",
        ),
        (
            "retained",
            4096,
            0,
            "retained 0 B is 4.0 KiB (-100.0%) below its baseline of 4.0 KiB, 40 B allowed",
        ),
        ("allocations", 0, 3, "allocations 3 is 3 above its baseline of 0, 0 allowed"),
    ],
)
def test_texts(metric: str, before: int, after: int, text: str) -> None:
    compared = Comparison((metric,), Tolerance.parse("1%"))
    assert off(compared.change(metric, Spread.of(before), Spread.of(after))) == text


def said(metric: str, **more: object) -> list[str]:
    change = Change(metric, Spread.of(1), Spread.of(3))
    return [*details(Finding(Kind.BASELINE, Verdict.OVER, Severity.FAIL, Changed(change, **more), device=CPU))]  # type: ignore[arg-type]


def test_places_that_grew() -> None:
    def place(name: str, numbers: tuple[int, ...], before: int | None, after: int, hidden: int = 0) -> GrownPlace:
        return GrownPlace(f"model.py::{name}", Frame("model.py", numbers[-1], name), numbers, before, after, hidden)

    assert said("requested", places=(place("f", (5, 7, 8, 9), 6, 22), place("new", (31,), None, 2))) == [
        "live at the peak, places that grew:",
        "   +16 B  6 B -> 22 B  model.py:9 in f (and line 5, 7, 8)",
        "    +2 B   new -> 2 B  model.py:31 in new",
    ]
    assert said("retained", places=(place("f", (1, 2, 3, 4, 6), None, 9, 6),)) == [
        "still live:",
        "   +3 B  <= 6 B -> 9 B  model.py:6 in f (and line 1, 2, 3, ...)",
    ]
    assert said("requested", places=(GrownPlace("(no Python stack)", None, (), 1, 2),))[1:] == [
        "   +1 B  1 B -> 2 B  (no Python stack)"
    ]
    assert said("peak") == []


def test_lines_that_took_something() -> None:
    line = Frame("programs.py", 70, "adam")
    assert said("segments", taken=(Taken(line, 2, 4 * MIB), Taken(None, 1, MIB, side_stream=True))) == [
        "segments that were taken:",
        "   4.0 MiB  2 segments  programs.py:70 in adam",
        "   1.0 MiB   1 segment  (no Python stack) (on a side stream)",
    ]
    assert said("allocations", taken=(Taken(line, 18),)) == [
        "allocations of this run, by line:",
        "   18  programs.py:70 in adam",
    ]


def test_why_nothing_is_known() -> None:
    assert said("requested", missing=NoEvidence("live at the peak", Why.WORKSPACES)) == [
        "live at the peak: unknown, a library may have allocated a workspace without a recorded event"
    ]
