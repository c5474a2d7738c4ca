"""What is advised about a cycle, by its chain."""

from __future__ import annotations

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import CycleKept
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.remarks import Remark
from cudamem_testing.wording.cycles import cycle_kept

USUAL = "break the cycle, or use a weak reference for the way back"
ERROR = ("ValueError.__traceback__", "traceback.tb_frame", "frame run", "local 'last'", "ValueError")
CLASS = ("class Local", "__init__", "function __init__", "__closure__[0]", "cell", "class Local")
OF_A_CLASS = "a class always refers to itself: define Local outside the function, and pass it what its methods use"
CLOSED_OVER = "walk refers to itself through its closure: define it outside the function, or pass it as an argument"
FUNCTION = ("function walk", "__closure__[1]", "cell", "function walk")


def advice(*chain: str, library: str = "", remark: Remark | None = None) -> str:
    fact = CycleKept(chain, ("big float32[256]",), 1, library=library, remark=remark)
    finding = Finding(Kind.CYCLE, Verdict.CYCLE, Severity.FAIL, fact, bytes=1024, device=Device("cpu"))
    return cycle_kept(finding, fact)[-1].partition("cycle; ")[2]


@pytest.mark.parametrize(
    ("chain", "text"),
    [
        (("Node.__dict__['me']", "Node"), USUAL),
        (ERROR, "an error refers to the frames it passed: del last at the end of run()"),
        (CLASS, OF_A_CLASS),
        (("class Local", "__mro__", "class Local"), OF_A_CLASS),
        (FUNCTION, CLOSED_OVER),
        (("function walk", "__closure__[0]", "cell", "Node.__dict__['hook']", "function walk"), USUAL),
        (("class Local", "me", "Node.__dict__['made_by']", "Node"), USUAL),
        (("generator steps", "local 'held'", "Node"), USUAL),
        ((), USUAL),
    ],
    ids=[
        "object",
        "error",
        "class",
        "bare class",
        "function",
        "function over another",
        "class and object",
        "generator",
        "not read",
    ],
)
def test_the_advice_fits_what_is_in_the_cycle(chain: tuple[str, ...], text: str) -> None:
    assert advice(*chain) == text


def test_a_cycle_of_others_has_no_advice_of_the_projects() -> None:
    assert advice(*CLASS, library="torch", remark=Remark.LIBRARY) == USUAL
    assert advice(*ERROR, remark=Remark.HARNESS) == USUAL
