"""What a number off its baseline says, to the letter."""

from __future__ import annotations

import pytest

from cudamem_testing.model.changes import Change, ChangedPlace, Comparison, Spread, Tolerance
from cudamem_testing.model.devices import Device
from cudamem_testing.model.evidence import NoEvidence, Why
from cudamem_testing.model.facts import Changed, Taken
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.stacks import Frame
from cudamem_testing.wording import baselines
from cudamem_testing.wording.baselines import off
from cudamem_testing.wording.findings import details

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


LINE = Frame("net.py", 24, "Net.forward")
CALLER = Frame("test_net.py", 9, "test_step")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (
            ChangedPlace("net.py::f", LINE, (), None, 3 * MIB, saved=3 * MIB, text="h = F.gelu(h)", caller=CALLER),
            "saved for backward: +3.0 MiB by net.py:24 in Net.forward (gelu) <- test_net.py:9",
        ),
        (
            ChangedPlace("net.py::f", LINE, (), MIB, 4 * MIB, blocks=4, blocks_before=1, recorded=True, call="softmax"),
            "saved for backward: +3.0 MiB by net.py:24 in Net.forward (softmax), 1.0 MiB -> 4.0 MiB in 1 -> 4 blocks",
        ),
        (
            ChangedPlace("net.py::f", LINE, (), None, 2, text="x = f(g(y))[h(0)]"),
            "new: +2 B by net.py:24 in Net.forward",
        ),
        (
            ChangedPlace("net.py::f", LINE, (), None, 2, text="x = F.gelu(g(y * 2))"),
            "new: +2 B by net.py:24 in Net.forward (gelu)",
        ),
        (ChangedPlace("net.py::f", LINE, (), None, 2, text="x = y + g(y)"), "new: +2 B by net.py:24 in Net.forward"),
        (ChangedPlace("net.py::f", LINE, (), 2, 5), "grew: +3 B by net.py:24 in Net.forward, 2 B -> 5 B"),
        (ChangedPlace("net.py::f", LINE, (), 5, 2), "shrank: -3 B by net.py:24 in Net.forward, 5 B -> 2 B"),
        (
            ChangedPlace("net.py::f", LINE, (1, 2, 3, 4, 24), None, 9, 6),
            "grew: +3 B by net.py:24 in Net.forward (and line 1, 2, 3, ...), <= 6 B -> 9 B",
        ),
        (
            ChangedPlace("test_a.py::test_it > lib/gpt2.py::MLP.forward", None, (), MIB, 0),
            "gone: -1.0 MiB by test_a.py in test_it > lib/gpt2.py in MLP.forward",
        ),
        (
            ChangedPlace("net.py::Net.forward", None, (), MIB, 0, text="h = F.gelu_(h)"),
            "gone: -1.0 MiB by net.py in Net.forward: h = F.gelu_(h)",
        ),
        (ChangedPlace("(no Python stack)", None, (), 1, 2), "grew: +1 B by (no Python stack), 1 B -> 2 B"),
    ],
)
def test_a_line_that_differs(place: ChangedPlace, text: str) -> None:
    assert baselines.place(place) == text


def test_lines_that_differ() -> None:
    grew = ChangedPlace("net.py::f", LINE, (), 4, 8, blocks=1, blocks_before=1, text="a = f(x)")
    edited = ChangedPlace("net.py::f", LINE, (), 4, 6, text="a = f(x)", was="a = f_(x)")
    now = ChangedPlace("net.py::f", LINE, (), None, 6, recorded=True, text="a = f(x)")
    assert said("requested", places=(grew, edited), more=3) == [
        "grew: +4 B by net.py:24 in Net.forward (f), 4 B -> 8 B",
        "   | a = f(x)",
        "grew: +2 B by net.py:24 in Net.forward (f), 4 B -> 6 B",
        "   - a = f_(x)",
        "   + a = f(x)",
        "... 3 more lines",
        "   hint: as many blocks, each 2 times as large: another dtype or shape?",
    ]
    assert said("requested", places=(now,))[2:] == [
        "   hint: grad mode was off there when the baseline was recorded: is a torch.no_grad() missing?"
    ]
    assert said("retained", places=(now,))[:2] == [
        "still live: 6 B by net.py:24 in Net.forward (f)",
        "   | a = f(x)",
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
