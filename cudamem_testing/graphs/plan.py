"""Everything that one capture needs, so that it can be repeated. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cudamem_testing.graphs.backend import Backend, Graph
from cudamem_testing.graphs.inputs import StaticInputs
from cudamem_testing.guards import CollectorPaused
from cudamem_testing.safe_access import is_a


@dataclass(frozen=True)
class Plan:
    """A function with its static inputs, and how it is captured. ``code`` is the function's own, if it has one."""

    backend: Backend
    function: Callable[..., Any]
    code: types.CodeType | None
    inputs: StaticInputs
    pool: Any
    stream: Any
    error_mode: str

    def record(self, graph: Graph, around: contextlib.AbstractContextManager[Any] | None = None) -> Any:
        """Call the function while the stream records, without garbage collection; returns its outputs.

        ``around`` is entered once the stream records, and left before recording ends.
        """
        for _, leaf in self.inputs.leaves:
            if is_a(leaf, torch.Generator):
                self.backend.register(graph, leaf)
        with (
            CollectorPaused(),
            self.backend.capturing(graph, self.pool, self.stream, self.error_mode),
            around or contextlib.nullcontext(),
        ):
            return self.call()

    def call(self) -> Any:
        """Call the function with the static inputs."""
        args, kwargs = self.inputs.arguments
        return self.function(*args, **kwargs)
