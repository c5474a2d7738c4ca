"""The second look at a capture that failed: what was running, and what broke it without a word."""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import Any

import pytest
import torch

from cudamem_testing.graphs.reasons import INSIDE, ONCE, OTHER_LIBRARY, SILENT
from cudamem_testing.graphs.rules import MEANINGS, Meaning, Rule
from cudamem_testing.graphs.session import GraphCapture
from suites.graphs.failing import INVALID, REFUSED, Wide, backend, failed, graphs, library
from suites.graphs.fake import FakeBackend

__all__ = ["backend", "graphs"]  # fixtures


def test_a_returned_operator_is_no_longer_running(graphs: GraphCapture, backend: FakeBackend) -> None:
    """The library's call comes after it."""
    other = library("def allocate(now):\n    if now: raise OSError(REFUSED)", "otherlib")

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        other.allocate(backend.events[-1] == "capture")  # breaks
        return y

    told = failed(graphs, Wide(step), torch.ones(3))
    assert (told.operator, told.meaning, told.place.module) == ("otherlib.allocate()", OTHER_LIBRARY, "inner.1")
    assert told.place.source.endswith("# breaks")


@pytest.mark.parametrize(
    ("operator", "meaning"), [("aten::index", MEANINGS[Rule.DATA_SHAPE]), ("aten::cumsum", INSIDE)]
)
def test_the_running_operator_gives_the_rule(
    graphs: GraphCapture, backend: FakeBackend, operator: str, meaning: Meaning
) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0)[x > 0]  # breaks

    backend.refuses = {operator: REFUSED}
    told = failed(graphs, Wide(step), torch.ones(3))
    assert (told.operator, told.meaning, told.place.module) == (operator, meaning, "inner.1")


def test_a_library_error_below_an_operator_is_examined(graphs: GraphCapture, backend: FakeBackend) -> None:
    backend.refuses = {"aten::_linalg_eigh": "an unknown error"}
    told = failed(graphs, lambda x: torch.linalg.eigvalsh(x), torch.eye(3))
    assert (told.operator, told.rule) == ("aten::_linalg_eigh", Rule.HOST_READ)


def test_an_operator_on_a_stream_that_does_not_capture(graphs: GraphCapture, backend: FakeBackend) -> None:
    """The capture is broken before the line that gives the capturing stream back."""
    other = library(
        """
class On:
    def __init__(self, backend, stream):
        self.backend, self.stream = backend, stream
    def __enter__(self):
        self.backend.stream = self.stream
    def __exit__(self, *_):
        self.backend.stream = 0
""",
        "otherlib",
    )

    def step(x: torch.Tensor) -> torch.Tensor:
        with other.On(backend, 7):
            y = x.cumsum(0)  # breaks
        return y + 1

    backend.apart, backend.refuses = {7}, {"aten::cumsum": REFUSED}
    told = failed(graphs, Wide(step), torch.ones(3))
    assert (told.operator, told.rule, told.place.module) == ("aten::cumsum", Rule.STREAM, "inner.1")
    assert told.place.source == "y = x.cumsum(0) # breaks"


def test_the_last_work_of_a_stream_that_is_not_joined(graphs: GraphCapture, backend: FakeBackend) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        backend.stream = 7
        z = y + 1  # breaks
        backend.stream = 0
        return y - z

    backend.breaks_at_the_end = "CUDA error: capturing stream has unjoined work"
    told = failed(graphs, Wide(step), torch.ones(3))
    assert (told.operator, told.rule, told.place.module) == ("aten::add", Rule.STREAM, "inner.1")
    assert told.place.source == "z = y + 1 # breaks"


def test_the_line_that_leaves_another_stream(graphs: GraphCapture, backend: FakeBackend) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        backend.stream = 7  # breaks
        return y + 1

    def again(x: torch.Tensor) -> torch.Tensor:
        backend.stream = 0
        return step(x)

    backend.breaks_at_the_end = "Capture must end on the same stream it began on."
    told = failed(graphs, Wide(again), torch.ones(3))
    assert (told.rule, told.place.source, told.place.module) == (Rule.STREAM, "backend.stream = 7 # breaks", "inner.1")


def test_the_line_that_breaks_it_silently(graphs: GraphCapture, backend: FakeBackend) -> None:
    other = library("def allocate(backend):\n    backend.silently_broken = backend.events[-1] == 'capture'", "otherlib")

    def helper() -> None:
        other.allocate(backend)  # breaks

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        helper()
        if backend.silently_broken:
            raise RuntimeError(INVALID)
        return y

    def trace(*args: Any) -> None:
        """Somebody's."""

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        told = failed(graphs, Wide(step), torch.ones(3))
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert (told.operator, told.rule, told.meaning) == ("", None, SILENT)
    assert (told.place.source, told.place.module) == ("other.allocate(backend) # breaks", "inner.1")


def test_the_breaking_line_is_named_despite_later_errors(graphs: GraphCapture, backend: FakeBackend) -> None:
    """A library that shares the last error with torch makes the next operator say what was its own."""

    def step(x: torch.Tensor) -> torch.Tensor:
        backend.silently_broken = backend.events[-1] == "capture"  # breaks
        return x.cumsum(0)

    backend.refuses = {"aten::cumsum": REFUSED}
    told = failed(graphs, step, torch.ones(3))
    assert (told.operator, told.meaning) == ("", SILENT)
    assert told.place.source.endswith("# breaks")


def test_a_caught_exception_is_reported(graphs: GraphCapture, backend: FakeBackend) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            x.max().item()  # breaks
        if backend.silently_broken:
            raise RuntimeError(INVALID)
        return x * 2

    told = failed(graphs, step, torch.ones(3))
    assert (told.operator, told.rule) == ("aten::_local_scalar_dense", Rule.HOST_READ)
    assert told.place.source.endswith("# breaks")


def test_what_happens_only_once_is_named(graphs: GraphCapture, backend: FakeBackend) -> None:
    used: list[int] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        if not used:
            used.append(1)
            raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
        return x * 2

    told = failed(graphs, step, torch.ones(3), warmup=0)
    assert (told.operator, told.rule, told.meaning) == ("", None, ONCE)
    assert backend.graphs == []


def test_a_function_of_torch_that_hides_its_operators(graphs: GraphCapture, backend: FakeBackend) -> None:
    class Refusing:
        def __len__(self) -> int:
            raise RuntimeError(REFUSED)

        def __getitem__(self, at: int) -> float:
            raise RuntimeError(REFUSED)

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor(Refusing() if backend.events[-1] == "capture" else 2.0)  # breaks

    told = failed(graphs, step, torch.ones(3))
    assert (told.operator, told.rule) == ("torch.tensor()", Rule.HOST_READ)


def test_a_second_look_frees_everything_with_its_pool(
    graphs: GraphCapture, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    kept: list[OSError] = []
    recover = backend.recover

    def recovered(graph: Any) -> None:
        recover(graph)
        alive.append(sum(one() is not None for one in made))

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        made.append(weakref.ref(y))
        kept.append(OSError(REFUSED))  # as a future does
        raise kept[-1]

    monkeypatch.setattr(backend, "recover", recovered)
    failed(graphs, step, torch.ones(3), warmup=0)
    assert (len(made), alive) == (2, [0, 0])


def test_a_call_after_a_helper_on_the_same_line(graphs: GraphCapture, backend: FakeBackend) -> None:
    source = "def allocate(backend, size):\n    backend.silently_broken = backend.events[-1] == 'capture'"
    other = library(source, "otherlib")

    def size() -> int:
        return 4

    def step(x: torch.Tensor) -> torch.Tensor:
        other.allocate(backend, size())  # breaks
        if backend.silently_broken:
            raise RuntimeError(INVALID)
        return x * 2

    told = failed(graphs, step, torch.ones(3))
    assert told.place.source == "other.allocate(backend, size()) # breaks"


@pytest.mark.parametrize(("looks", "operator"), [(1, "aten::cumsum"), (2, "aten::cumsum"), (3, "x.cumsum(0)")])
def test_a_look_at_another_failure_is_followed_by_one_more(
    graphs: GraphCapture, backend: FakeBackend, looks: int, operator: str
) -> None:
    """``looks`` captures after the first break otherwise, and show nothing; the fourth is the last."""
    captures: list[str] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        captures.append("capture")
        if 1 < len(captures) <= 1 + looks:
            raise RuntimeError("dependency created on uncaptured work in another stream")
        return x.cumsum(0)

    backend.refuses = {"aten::cumsum": REFUSED}
    told = failed(graphs, Wide(step), torch.ones(3), warmup=0)
    assert (told.operator, len(captures)) == (operator, min(looks + 2, 4))
