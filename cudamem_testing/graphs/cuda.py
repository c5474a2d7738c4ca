"""The backend of a CUDA device. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from cudamem_testing import torch_api
from cudamem_testing.graphs.backend import Allocations, Graph, Handle
from cudamem_testing.graphs.dot import read_dot
from cudamem_testing.graphs.nodes import LevelError, Node, NodeList
from cudamem_testing.graphs.operators import POISON
from cudamem_testing.guards import replaced, without_warning
from cudamem_testing.model.devices import Device
from cudamem_testing.model.pools import Pool
from cudamem_testing.model.stacks import Locator, Stack
from cudamem_testing.snapshots.fragmentation import fragmentation
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.record import Recording
from cudamem_testing.torch_api import graphs as api

NO_NODES = (
    "the nodes of this graph cannot be read: install cuda-bindings, or use a torch whose CUDAGraph keeps its graph"
)


class CudaBackend:
    """Captures and replays on one CUDA device, by default the current one."""

    def __init__(self, index: int | None = None, root: str | None = None) -> None:
        self._wanted = index
        self._locator = Locator(os.getcwd() if root is None else root)
        self._stream: Any = None

    @property
    def device(self) -> str:
        """``cuda:0``."""
        return f"cuda:{torch.cuda.current_device() if self._wanted is None else self._wanted}"

    def unavailable(self) -> str | None:
        """Why nothing can be captured here."""
        return None if torch.cuda.is_available() else "CUDA graphs need a CUDA device, and torch sees none"

    def new_graph(self) -> Graph:
        """A graph that keeps its nodes."""
        return api.new_graph()

    def new_pool(self) -> Handle:
        """``torch.cuda.graph_pool_handle()``."""
        return torch.cuda.graph_pool_handle()

    @contextlib.contextmanager
    def warming(self, stream: Any) -> Iterator[None]:
        """Warm up on the capturing stream, so that libraries create their state for this stream before the capture."""
        with torch.cuda.device(self.device):
            side = self._side(stream)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                yield
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()

    @contextlib.contextmanager
    def capturing(self, graph: Graph, pool: Handle | None, stream: Any, error_mode: str) -> Iterator[None]:
        """Like ``torch.cuda.graph``, but the stream is also restored if the capture cannot be ended."""
        arguments = () if pool is None else (pool,)
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            api.clear_host_cache()
            with api.on_stream(self._side(stream)):
                graph.capture_begin(*arguments, capture_error_mode=error_mode)
                try:
                    yield
                finally:
                    self._end(graph, self._side(stream))
            api.instantiate(graph)

    def _end(self, graph: Graph, side: Any) -> None:
        """End a capture, even if the function left another stream current: torch refuses that and keeps capturing."""
        try:
            graph.capture_end()
        except RuntimeError:
            if torch.cuda.current_stream() != side:
                torch.cuda.set_stream(side)
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
            raise

    def here(self) -> tuple[int, bool]:
        """``current_stream``, and ``is_current_stream_capturing``."""
        return torch.cuda.current_stream().cuda_stream, torch.cuda.is_current_stream_capturing()

    def intact(self, stream: int) -> bool:
        """From the driver."""
        return api.capture_intact(stream)

    def recover(self, graph: Graph) -> None:
        """Clear what a failed capture leaves: its error, its pool, and generators in capture mode.

        A capture that succeeds resets the default generator: it registers and releases it.
        """
        with contextlib.suppress(RuntimeError):
            graph.reset()
        with torch.cuda.device(self.device):
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize()
            probe, mark = torch.cuda.CUDAGraph(), torch.zeros(1, device=self.device)
            torch.cuda.synchronize()
            with api.on_stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                probe.capture_begin()
                try:
                    mark.add_(1)
                finally:
                    probe.capture_end()
            probe.reset()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def register(self, graph: Graph, generator: Any) -> None:
        """``CUDAGraph.register_generator_state``."""
        graph.register_generator_state(generator)

    def replay(self, graph: Graph) -> None:
        """``CUDAGraph.replay``."""
        graph.replay()

    def reset(self, graph: Graph) -> None:
        """``CUDAGraph.reset``, and return the segments to the driver."""
        torch.cuda.synchronize(self.device)
        graph.reset()
        torch.cuda.empty_cache()

    def pool(self, graph: Graph) -> Pool:
        """The pool's id."""
        first, second = graph.pool()
        return int(first), int(second)

    def synchronize(self) -> None:
        """``torch.cuda.synchronize``."""
        torch.cuda.synchronize(self.device)

    def allocations(self) -> Allocations:
        """From the allocator's nested statistics."""
        stats = torch.cuda.memory_stats_as_nested_dict(self.device)
        return Allocations(
            int(stats["allocation"]["all"]["allocated"]),
            int(stats["segment"]["all"]["allocated"]),
            int(stats["allocated_bytes"]["all"]["current"]),
            int(stats["reserved_bytes"]["all"]["current"]),
        )

    def recording(self) -> Recording:
        """A snapshot without events, which imports nothing."""
        with replaced(torch_api.lazy_without_compiler()):
            segments = api.fast_snapshot()
        return read(segments, Device.parse(self.device), self._locator)

    def stacks(self, addresses: Sequence[int]) -> dict[int, Stack]:
        """From a snapshot, if the allocator's history is on."""
        if not torch_api.history_enabled():
            return {}
        recording = self.recording()
        wanted = {*addresses}
        return {block.address: recording.stacks[block.stack] for block in recording.blocks if block.address in wanted}

    def poison_free(self, pool: Pool) -> int:
        """Overwrite every range of the pool's segments without a live block."""
        device, total = torch.device(self.device), 0
        for part in fragmentation(self.recording()).ranges:
            if part.pool == pool and api.overwrite(part.address, part.size, device, POISON):
                total += part.size
        return total

    def random_state(self) -> Any:
        """``torch.cuda.get_rng_state``."""
        return torch.cuda.get_rng_state(self.device)

    def set_random_state(self, state: Any) -> None:
        """``torch.cuda.set_rng_state``."""
        torch.cuda.set_rng_state(state, self.device)

    def node_count(self) -> int | None:
        """From the driver, while the current stream captures."""
        return api.captured_nodes()

    def size(self, graph: Graph) -> int | None:
        """From the driver."""
        return api.count_nodes(graph)

    def nodes(self, graph: Graph) -> NodeList:
        """Read through NVIDIA's bindings, otherwise from a dump.

        Raises:
            LevelError: if neither is available.
        """
        raw = api.raw_nodes(graph)
        if raw is not None:
            return NodeList(tuple(Node(kind, name) for kind, name in raw[0]), tuple(raw[1]))
        try:
            with tempfile.TemporaryDirectory() as folder, without_warning("DEBUG: calling"):
                path = Path(folder) / "graph.dot"
                graph.debug_dump(str(path))
                text = path.read_text(encoding="utf-8", errors="replace")
        except (OSError, RuntimeError) as error:
            raise LevelError(f"{NO_NODES} ({' '.join(str(error).split())[:120]})") from None
        return read_dot(text)

    def make_graphed_callables(
        self,
        callables: tuple[Callable[..., Any], ...],
        sample_args: tuple[tuple[Any, ...], ...],
        num_warmup_iters: int,
        allow_unused_input: bool,
        pool: Handle | None,
        after_capture: Callable[[], None],
    ) -> tuple[Callable[..., Any], ...]:
        """Call torch's function on this device. If it fails it leaves another stream current."""
        end = torch.cuda.CUDAGraph.capture_end

        def capture_end(graph: Any) -> None:
            end(graph)
            after_capture()

        with (
            torch.cuda.device(self.device),
            api.on_stream(torch.cuda.current_stream()),
            replaced([(torch.cuda.CUDAGraph, "capture_end", capture_end)]),
        ):
            return torch.cuda.make_graphed_callables(
                callables, sample_args, num_warmup_iters, allow_unused_input=allow_unused_input, pool=pool
            )

    def _side(self, stream: Any) -> Any:
        """The capturing stream: the given one, or one for all captures, so that they can share memory."""
        if stream is not None:
            return stream
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return self._stream
