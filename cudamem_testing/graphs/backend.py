"""The interface to the device: everything that captures and assertions need from it, and nothing else.

``CudaBackend`` (:mod:`.cuda`) is the real one. The code above this interface can be tested
with another backend that records operators and calls them again. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from cudamem_testing.graphs.nodes import NodeList
from cudamem_testing.model.pools import Pool
from cudamem_testing.model.stacks import Stack
from cudamem_testing.snapshots.record import Recording

#: A graph and a pool's handle, as the backend creates them; opaque for all other code.
Graph = Any
Handle = Any


@dataclass(frozen=True, slots=True)
class Allocations:
    """Counters of the device's allocator: allocations and segments so far, bytes allocated and reserved now."""

    allocations: int
    segments: int
    allocated: int
    reserved: int


class Backend(Protocol):
    """A device that can capture and replay graphs."""

    @property
    def device(self) -> str:
        """``cuda:0``: where captures run, and whose tensors become static inputs."""

    def unavailable(self) -> str | None:
        """Why nothing can be captured here; ``None`` if it can."""

    def new_graph(self) -> Graph:
        """A graph whose nodes can be read after the capture, if the installed torch supports that."""

    def new_pool(self) -> Handle:
        """A handle by which several captures share one pool."""

    def warming(self, stream: Any) -> AbstractContextManager[None]:
        """A side stream for warm-up, which starts after queued work, and is waited for at the end."""

    def capturing(
        self, graph: Graph, pool: Handle | None, stream: Any, error_mode: str
    ) -> AbstractContextManager[None]:
        """Capture what runs inside. The current stream is always restored."""

    def here(self) -> tuple[int, bool]:
        """The current stream as a unique number, and whether it captures."""

    def intact(self, stream: int) -> bool:
        """Whether the capture on a stream (see :meth:`here`) is not broken so far, if that can be queried."""

    def recover(self, graph: Graph) -> None:
        """After a failed capture: free the graph, and make the process able to capture again.

        Raises:
            RuntimeError: if the device no longer works.
        """

    def register(self, graph: Graph, generator: Any) -> None:
        """Register a generator's state with a graph."""

    def replay(self, graph: Graph) -> None:
        """Run a graph on the current stream."""

    def reset(self, graph: Graph) -> None:
        """Free a graph and its memory."""

    def pool(self, graph: Graph) -> Pool:
        """The pool of a captured graph."""

    def synchronize(self) -> None:
        """Wait for the device."""

    def allocations(self) -> Allocations:
        """The allocator's counters now."""

    def recording(self) -> Recording:
        """The allocator's segments and blocks now, without events."""

    def stacks(self, addresses: Sequence[int]) -> dict[int, Stack]:
        """The stacks that allocated the blocks at these addresses; empty if no history is kept."""

    def poison_free(self, pool: Pool) -> int:
        """Overwrite the free memory of a pool with NaN; returns how many bytes."""

    def random_state(self) -> Any:
        """The state of the device's default generator."""

    def set_random_state(self, state: Any) -> None:
        """Restore the state of the default generator."""

    def node_count(self) -> int | None:
        """Nodes captured so far on the current stream; ``None`` if that cannot be queried."""

    def size(self, graph: Graph) -> int | None:
        """Number of nodes of a captured graph; ``None`` if that needs reading them all."""

    def nodes(self, graph: Graph) -> NodeList:
        """The nodes of a captured graph in the order in which they were captured.

        Raises:
            LevelError: if neither the driver's bindings nor a dump are available.
        """

    def make_graphed_callables(
        self,
        callables: tuple[Callable[..., Any], ...],
        sample_args: tuple[tuple[Any, ...], ...],
        num_warmup_iters: int,
        allow_unused_input: bool,
        pool: Handle | None,
        after_capture: Callable[[], None],
    ) -> tuple[Callable[..., Any], ...]:
        """``torch.cuda.make_graphed_callables`` for a tuple; ``after_capture`` is called at the end of each capture."""
