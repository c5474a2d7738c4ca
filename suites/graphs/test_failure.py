"""Captures and warm-ups that fail: what the exception itself tells, on a backend without a card."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cudamem_testing.graphs.failure import CaptureError, FirstLook, first_look
from cudamem_testing.graphs.places import CapturePlaces
from cudamem_testing.graphs.reasons import EMPTY, INSIDE, NESTED, OTHER_LIBRARY, OWN, Clues
from cudamem_testing.graphs.rules import MEANINGS, Meaning, Rule
from cudamem_testing.graphs.session import GraphCapture
from cudamem_testing.model.stacks import Locator
from suites.graphs.failing import REFUSED, ROOT, Wide, backend, failed, graphs, library
from suites.graphs.fake import FakeBackend
from suites.versions import qualified

__all__ = ["backend", "graphs"]  # fixtures


def lines(meaning: Meaning) -> list[str]:
    """How a meaning is shown."""
    return [f"   {meaning.happens}", f"   do: {meaning.advice}"]


def test_a_failure_without_a_rule(graphs: GraphCapture, backend: FakeBackend) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        if backend.events[-1] == "capture":
            raise OSError("the library is\n busy")
        return x * 2

    told = failed(graphs, broken, torch.ones(3), warmup=1)
    assert str(told).splitlines()[1:] == [
        "   no operator was running",
        "   OSError: the library is",
        *lines(OTHER_LIBRARY),
    ]


def test_an_error_of_the_function_itself(graphs: GraphCapture) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return x * (1 // 0)

    told = failed(graphs, broken, torch.ones(3), warmup=0)
    assert str(told).splitlines()[1:] == [
        "   no operator was running",
        "   ZeroDivisionError: integer division or modulo by zero",
        *lines(OWN),
    ]


def look(function: Callable[[], Any], code: types.CodeType | None = None) -> FirstLook:
    """The first look at what a function raises."""
    with pytest.raises(Exception, match=r".") as failure:
        function()
    return first_look(failure.value, CapturePlaces(Locator(ROOT)), code or look.__code__)


WAITS = "def synchronize():\n    raise RuntimeError(REFUSED)\ndef query():\n    raise RuntimeError(REFUSED)"


@pytest.mark.parametrize("module", ["torch.cuda", "torch.cuda.streams", "torch.accelerator"])
def test_a_wait_is_recognised_by_its_name(module: str) -> None:
    told = look(library(WAITS, module).synchronize)
    name = f"{module.removesuffix('.streams')}.synchronize()"
    assert told.clues == Clues(call=name, waits=True)
    assert not told.unclear
    failure = told.failure("f")
    assert (failure.operator, failure.rule) == (name, Rule.SYNCHRONIZE)


def test_a_function_of_that_name_elsewhere_is_no_wait() -> None:
    told = look(library(WAITS, "project.work").query)
    assert told.clues == Clues(call="project.work.query()")
    assert told.unclear
    failure = told.failure("f", Clues(operator="aten::mul"))
    assert (failure.operator, failure.rule, failure.meaning) == ("aten::mul", None, INSIDE)


def test_a_wait_deep_in_a_library_is_named() -> None:
    waits = library(WAITS, "torch.cuda")
    inside = library("def step(wait):\n    _inner(wait)\ndef _inner(wait):\n    wait()", "otherlib")
    assert look(lambda: inside.step(waits.synchronize)).clues.call == "torch.cuda.synchronize()"
    other = library("def allocate():\n    raise OSError(REFUSED)", "cupy")
    assert look(lambda: inside.step(other.allocate)).clues.call == "otherlib.step()"


def test_a_capture_inside_another_is_named() -> None:
    source = "class graph:\n    def __enter__(self):\n        raise RuntimeError(REFUSED)"
    told = look(library(source, "torch.cuda.graphs").graph().__enter__)
    failure = told.failure("f")
    name = "graph.__enter__()"
    assert (failure.operator, failure.rule, failure.meaning) == (f"torch.cuda.graphs.{name}", None, NESTED)
    assert not told.unclear


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not tell columns")
def test_a_c_call_is_named_as_written() -> None:
    assert look(lambda: bytes.fromhex("capture")).clues == Clues(call='bytes.fromhex("capture")')
    assert look(lambda: [][1]).clues == Clues()


def raises(error: BaseException) -> Callable[[], Any]:
    def body() -> None:
        raise error

    return body


def test_a_workers_exception_is_reported_in_its_own_words() -> None:
    said = (
        "Caught AcceleratorError in pin memory thread for device 0.\nOriginal Traceback (most recent call last):\n"
        f'  File "/home/me/capture.py", line 3, in pin\ntorch.AcceleratorError: {REFUSED}\nSearch for `cudaErrorStream'
    )
    told = look(raises(RuntimeError(said)))
    first = "RuntimeError: Caught AcceleratorError in pin memory thread for device 0."
    assert told.error == f"{first} torch.AcceleratorError: {REFUSED}"
    plain = look(raises(RuntimeError("Caught KeyError.\nOriginal Traceback:\n  File capture.py\nKeyError: 'x'")))
    assert (plain.error, plain.failure("f").meaning) == ("RuntimeError: Caught KeyError.", OTHER_LIBRARY)


def half(x: torch.Tensor) -> torch.Tensor:
    return x[:2]


def test_an_empty_graph_is_explained(graphs: GraphCapture, backend: FakeBackend) -> None:
    """Whether torch's warning of it is an error, as here, or not."""
    assert graphs(half, torch.ones(4)).notes == (f"{EMPTY.happens}: {EMPTY.advice}",)
    assert graphs(lambda x: x * 2, torch.ones(4)).notes == ()
    backend.warns_of_empty_graphs = True
    told = failed(graphs, half, torch.ones(4))
    where = f"suites/graphs/test_failure.py:{half.__code__.co_firstlineno} in half"
    assert str(told).splitlines() == [
        f"the capture of function half failed at {where}: def half(x: torch.Tensor) -> torch.Tensor:",
        "   no operator was running",
        "   UserWarning: The CUDA Graph is empty. It was attempted to be captured on wrong device.",
        *lines(EMPTY),
    ]
    graphs(lambda x: x * 2, torch.ones(4)).assert_matches_eager()


MIXED = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


def test_a_warm_up_that_would_break_a_capture_is_explained(
    graphs: GraphCapture, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x + refusing()  # breaks

    def refusing() -> torch.Tensor:
        raise RuntimeError(MIXED)

    with pytest.raises(CaptureError) as failure:
        graphs(Wide(step), torch.ones(3))
    meaning, line = MEANINGS[Rule.DEVICE], refusing.__code__.co_firstlineno + 1
    function = qualified("test_a_warm_up_that_would_break_a_capture_is_explained.refusing")
    assert str(failure.value).splitlines() == [
        f"the warm-up of Wide failed at suites/graphs/test_failure.py:{line} in {function}: raise RuntimeError(MIXED)",
        "   no operator was running, in module inner.1",
        f"   RuntimeError: {MIXED}",
        f"   wrong device: {meaning.happens}",
        f"   do: {meaning.advice}",
    ]
    assert str(failure.value.__cause__) == MIXED
    assert "capture" not in backend.events


def test_the_operator_of_a_warm_up_that_fails(graphs: GraphCapture, backend: FakeBackend) -> None:
    backend.refuses_always = {"aten::add": MIXED}
    told = failed(graphs, lambda x: x + 1, torch.ones(3))
    assert (told.step, told.operator, told.rule) == ("warm-up", "aten::add", Rule.DEVICE)


def test_other_errors_of_the_warm_up_are_the_functions(graphs: GraphCapture) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match=r"^no such thing$"):
        graphs(step, torch.ones(3))


def test_a_lost_device_is_reported(graphs: GraphCapture, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(graph: Any) -> None:
        raise RuntimeError("CUDA error:\n device-side assert triggered")

    monkeypatch.setattr(backend, "recover", lost)
    told = failed(graphs, lambda x: x * x.max().item(), torch.ones(3))
    unusable = "CUDA error: device-side assert triggered"
    assert str(told).splitlines()[-1] == f"   the device cannot capture again in this process: {unusable}"
    assert told.orphans == ()


def test_an_earlier_handled_exception_is_unrelated(graphs: GraphCapture) -> None:
    with pytest.raises(KeyError) as outer:
        raise KeyError("before")
    try:
        raise outer.value
    except KeyError:
        told = failed(graphs, lambda x: x * x.max().item(), torch.ones(3))
    assert outer.value.__traceback__ is not None
    assert (told.operator, told.rule) == ("aten::_local_scalar_dense", Rule.HOST_READ)
    assert told.error == f"RuntimeError: {REFUSED}"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not keep the names of what is around it")
def test_wrappers_are_not_the_call() -> None:
    source = (
        "def wrap(function):\n    def wrapper():\n        function()\n    return wrapper\n"
        "@wrap\ndef allocate():\n    raise OSError(REFUSED)"
    )
    assert look(library(source, "otherlib").allocate).clues == Clues(call="otherlib.allocate()")
