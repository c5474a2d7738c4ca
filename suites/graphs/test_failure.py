"""Captures that fail outside of every rule, and captures of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cudamem_testing.graphs import CaptureError, GraphCapture
from cudamem_testing.graphs.failure import EMPTY, OWN, explain
from cudamem_testing.graphs.places import Places
from cudamem_testing.graphs.rules import Rule
from cudamem_testing.model.stacks import Locator
from suites.graphs.fake import FakeBackend

ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    monkeypatch.setattr("cudamem_testing.graphs.capture.collect_garbage", lambda: None)
    return FakeBackend()


@pytest.fixture
def graphs(backend: FakeBackend) -> Iterator[GraphCapture]:
    made = GraphCapture(backend, root=ROOT)
    yield made
    made.close()


def test_a_failure_that_is_nobodys_rule(graphs: GraphCapture) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        if x.grad_fn is None and len(calls) == 1:
            raise OSError("the library is\n busy")
        calls.append(1)
        return x * 2

    calls: list[int] = []
    with pytest.raises(CaptureError) as failure:
        graphs(broken, torch.ones(3), warmup=1, lint=False)
    lines = str(failure.value).splitlines()
    assert lines[1:3] == ["   no operator was at work", "   OSError: the library is"]
    assert lines[3].startswith("   a call that the driver does not allow while a stream captures")


def test_an_error_of_the_function_itself(graphs: GraphCapture) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return x * (1 // 0)

    with pytest.raises(CaptureError) as failure:
        graphs(broken, torch.ones(3), warmup=0)
    assert str(failure.value).splitlines()[1:] == [
        "   no operator was at work",
        "   ZeroDivisionError: integer division or modulo by zero",
        f"   {OWN}",
    ]


REFUSED = "CUDA error: operation not permitted when stream is capturing"


def raised(source: str, module: str) -> RuntimeError:
    """An error from inside a function ``synchronize`` of a module."""
    inside: dict[str, Any] = {"__name__": module, "REFUSED": REFUSED}
    exec(source, inside)
    with pytest.raises(RuntimeError) as failure:
        inside["synchronize"]()
    return failure.value


def test_a_wait_is_told_and_not_the_operator_before_it() -> None:
    places, source = Places(Locator(ROOT)), "def synchronize():\n    raise RuntimeError(REFUSED)"
    code = half.__code__
    for module in ("torch.cuda", "torch.cuda.streams"):
        told = explain("f", raised(source, module), places, code, code).named("aten::mul")
        assert (told.rule, told.operator) == (Rule.SYNCHRONIZE, "")
    told = explain("f", raised(source, "project.work"), places, code, code).named("aten::mul")
    assert (told.rule, told.operator) == (None, "aten::mul")


@pytest.mark.parametrize(
    ("said", "operator", "rule"),
    [
        (REFUSED, "aten::index", Rule.DATA_SHAPE),
        (REFUSED, "aten::index_put_", Rule.DATA_SHAPE),
        (REFUSED, "aten::repeat_interleave", Rule.DATA_SHAPE),
        (REFUSED, "aten::copy_", Rule.HOST_COPY),
        (REFUSED, "aten::mul", None),
        ("out of luck", "aten::index", None),
        ("Attempt to increase offset for a CUDA generator not in capture mode.", "aten::rand", Rule.GENERATOR),
    ],
)
def test_what_is_said_and_the_operator_tell_the_rule(said: str, operator: str, rule: Rule | None) -> None:
    code = half.__code__
    assert explain("f", RuntimeError(said), Places(Locator(ROOT)), code, code).named(operator).rule is rule


def half(x: torch.Tensor) -> torch.Tensor:
    return x[:2]


def test_an_empty_graph_is_explained(graphs: GraphCapture, backend: FakeBackend) -> None:
    """Whether torch's warning of it is an error, as here, or not."""
    assert graphs(half, torch.ones(4)).notes == (EMPTY,)
    assert graphs(lambda x: x * 2, torch.ones(4)).notes == ()
    backend.warns_of_empty_graphs = True
    with pytest.raises(CaptureError) as failure:
        graphs(half, torch.ones(4))
    line = half.__code__.co_firstlineno
    assert str(failure.value) == (
        f"the capture of function half failed at suites/graphs/test_failure.py:{line} in half: "
        "def half(x: torch.Tensor) -> torch.Tensor:\n"
        "   no operator was at work\n"
        "   UserWarning: The CUDA Graph is empty. It was attempted to be captured on wrong device.\n"
        f"   {EMPTY}"
    )
    graphs(lambda x: x * 2, torch.ones(4)).assert_matches_eager()
