"""What is advised about a cycle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cudamem_testing import reference_cycles
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import CycleKept
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.remarks import Knot, Remark, Tied
from cudamem_testing.wording.cycles import cycle_kept

USUAL = "break the cycle, or use a weak reference for the way back"
OF_A_CLASS = "a class always refers to itself: define Local outside the function, and pass it what its methods use"
CLOSED_OVER = "walk refers to itself through its closure: define it outside the function, or pass it as an argument"


class Node:
    """Anything with attributes."""


def advice(fact: CycleKept) -> str:
    finding = Finding(Kind.CYCLE, Verdict.CYCLE, Severity.FAIL, fact, bytes=1024, device=Device("cpu"))
    return cycle_kept(finding, fact)[-1].partition("cycle; ")[2]


def instance() -> None:
    one: Any = Node()
    one.me, one.big = one, torch.ones(256)


def error() -> None:
    big = torch.ones(256)
    try:
        raise ValueError(big.shape)
    except ValueError as caught:
        last = caught  # noqa: F841


def class_with_a_method() -> None:
    class Local:
        big = torch.ones(256)

        def __init__(self) -> None:
            self.cls = Local


def bare_class() -> None:
    class Local:
        big = torch.ones(256)


def function() -> None:
    big = torch.ones(256)

    def walk(depth: int) -> Any:
        return walk(depth - 1) if depth else big


def function_over_another() -> None:
    big = torch.ones(256)

    def walk(depth: int) -> Any:
        return step(depth) if depth else big

    def step(depth: int) -> Any:
        return walk(depth - 1)


def function_on_an_object() -> None:
    one: Any = Node()
    one.big = torch.ones(256)
    one.hook = lambda: one


def generator() -> None:
    def steps(held: Any) -> Any:
        yield held.big

    one: Any = Node()
    one.big, one.steps = torch.ones(256), steps(one)
    next(one.steps)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (instance, USUAL),
        (error, "an error refers to the frames it passed: del last at the end of error()"),
        (class_with_a_method, OF_A_CLASS),
        (bare_class, OF_A_CLASS),
        (function, CLOSED_OVER),
        (function_over_another, USUAL),
        (function_on_an_object, USUAL),
        (generator, USUAL),
    ],
)
def test_the_advice_fits_what_is_in_the_cycle(made: Callable[[], None], text: str) -> None:
    with reference_cycles() as cycles:
        made()
    (cycle,) = cycles.found
    assert advice(cycle.fact) == text


@pytest.mark.parametrize(("remark", "library"), [(Remark.LIBRARY, "torch"), (Remark.HARNESS, "")])
def test_a_cycle_of_others_has_no_advice_of_the_projects(remark: Remark, library: str) -> None:
    tied = Tied(Knot.CLASS, "Local")
    assert advice(CycleKept(("class Local",), (), 1, remark=remark, library=library, tied=tied)) == USUAL
    assert advice(CycleKept(("class Local",), (), 1, tied=tied)) == OF_A_CLASS


def test_a_cycle_that_was_not_read_has_the_usual_advice() -> None:
    assert advice(CycleKept((), (), 1)) == USUAL
