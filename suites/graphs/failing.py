"""What the suites of failed captures share: a backend without a card, a model, and libraries that refuse."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cudamem_testing.graphs.failure import CaptureError, Failure
from cudamem_testing.graphs.session import GraphCapture
from suites.graphs.fake import FakeBackend

ROOT = str(Path(__file__).parents[2])
REFUSED = "CUDA error: operation not permitted when stream is capturing"
INVALID = "CUDA error: operation failed due to a previous error during capture"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    monkeypatch.setattr("cudamem_testing.graphs.capture.collect_garbage", lambda: None)
    return FakeBackend()


@pytest.fixture
def graphs(backend: FakeBackend) -> Iterator[GraphCapture]:
    made = GraphCapture(backend, root=ROOT)
    yield made
    made.close()


def failed(graphs: GraphCapture, function: Callable[..., Any], *args: Any, **options: Any) -> Failure:
    """The explanation of a failed capture."""
    with pytest.raises(CaptureError) as failure:
        graphs(function, *args, **options)
    return failure.value.failure


def library(source: str, module: str) -> types.SimpleNamespace:
    """A library whose functions are no code of the project."""
    inside: dict[str, Any] = {"__name__": module, "REFUSED": REFUSED}
    exec(compile(source, f"/site-packages/{module}.py", "exec"), inside)
    return types.SimpleNamespace(**inside)


class Wide(torch.nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Identity(), Called(body))

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


class Called(torch.nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x)
