"""A backend without a card: a capture records operators with their tensors, a replay calls them again.

A replay writes each result into the tensor that the capture made, so static outputs, frozen constants, in-place changes
and random numbers behave as on a card. What a card would refuse (reading a value on the host) is refused here too.
Faults are planted through the attributes.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from cudamem_testing.graphs.backend import Allocations
from cudamem_testing.graphs.nodes import LevelError, Node, NodeList
from cudamem_testing.model.devices import Device
from cudamem_testing.model.pools import Pool
from cudamem_testing.model.stacks import Stack
from cudamem_testing.snapshots.record import LiveBlock, Recording, Segment

REFUSED = {"aten::_local_scalar_dense": "Tensor.item", "aten::nonzero": "nonzero", "aten::masked_select": "mask"}
VIEWS = ("view", "t", "transpose", "slice", "select", "detach", "expand", "unsqueeze", "permute", "alias", "as_strided")


class FakeGraph:
    """A tape."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.calls: list[tuple[Any, Any, Any]] = []
        self.generators: list[Any] = []
        self.storages: list[torch.UntypedStorage] = []
        self.broken = False


class _Outside:
    """The address of a tensor that the capture did not make. What is read of a dead one is what was there."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.view = tensor.storage_offset(), tensor.size(), tensor.stride()
        self.last = tensor.detach().clone()

    def tensor(self) -> torch.Tensor:
        if self.storage.expired():
            return self.last
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        return torch.empty(0, dtype=self.last.dtype).set_(storage, *self.view)


def _dispatch(self: _Tape, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    kwargs = kwargs or {}
    name = func.name().partition(".")[0]
    said = self.backend.refuses.get(name)
    if name in REFUSED or said is not None:
        self.graph.broken = self.backend.silently_broken = True
        raise RuntimeError(said or "CUDA error: operation not permitted when stream is capturing")
    known = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if _tensor(leaf)}
    kept = tree_map(
        lambda leaf: _Outside(leaf) if _tensor(leaf) and id(leaf) not in self.made else leaf, (args, kwargs)
    )
    result = func(*args, **kwargs)
    for leaf in tree_leaves(result):
        if _tensor(leaf):
            if leaf.untyped_storage()._cdata not in known:
                self.graph.storages.append(leaf.untyped_storage())
                self.made.add(id(leaf))
            elif any(leaf is given for given in tree_leaves((args, kwargs))):
                continue
            else:
                self.made.add(id(leaf))
    self.graph.calls.append((func, kept, result))
    self.backend.nodes_so_far += self.backend.launches(name)
    return result


# What refuses is no code of the project.
_dispatch.__code__ = _dispatch.__code__.replace(co_filename="/site-packages/driver.py")


class _Tape(TorchDispatchMode):
    def __init__(self, backend: FakeBackend, graph: FakeGraph) -> None:
        super().__init__()
        self.backend, self.graph = backend, graph
        self.made: set[int] = set()

    __torch_dispatch__ = _dispatch


class _Refusing(TorchDispatchMode):
    def __init__(self, backend: FakeBackend) -> None:
        super().__init__()
        self.backend = backend

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        said = self.backend.refuses_always.get(func.name().partition(".")[0])
        if said is not None:
            raise RuntimeError(said)
        return func(*args, **(kwargs or {}))


class FakeBackend:
    """The CPU as a device that captures."""

    device = "cpu"

    def __init__(self) -> None:
        self.next_pool = 1
        self.graphs: list[FakeGraph] = []
        self.orphans: list[Segment] = []
        self.nodes_so_far = 0
        self.tells_nodes = True
        self.allocates_in_replay = 0
        self.frozen_generator = False
        self.skipped: set[str] = set()
        self.leaves_orphans = False
        self.warns_of_empty_graphs = False
        self.stack_of: dict[int, Stack] = {}
        self.events: list[str] = []
        self.stream, self.apart = 0, set[int]()
        self.recording_now = False
        self.silently_broken = False
        self.refuses: dict[str, str] = {}
        self.refuses_always: dict[str, str] = {}
        self.breaks_at_the_end = ""
        self.made = 0
        self.wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function

    def unavailable(self) -> str | None:
        return None

    def new_graph(self) -> FakeGraph:
        return FakeGraph((0, 0))

    def new_pool(self) -> Pool:
        self.next_pool += 1
        return self.next_pool, 0

    @contextlib.contextmanager
    def warming(self, stream: Any) -> Iterator[None]:
        self.events.append("warm up")
        with _Refusing(self):
            yield

    @contextlib.contextmanager
    def capturing(self, graph: FakeGraph, pool: Pool | None, stream: Any, error_mode: str) -> Iterator[None]:
        graph.pool = pool or self.new_pool()
        self.events.append("capture")
        self.silently_broken = False
        self.nodes_so_far = 0
        try:
            self.recording_now = True
            with _Tape(self, graph):
                yield
        finally:
            self.recording_now = False
            if graph.broken:
                if self.leaves_orphans:
                    self.orphans.append(Segment(2**40, 2**21, pool=graph.pool))
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            if self.breaks_at_the_end:
                raise RuntimeError(self.breaks_at_the_end)
        if not self.size(graph) and self.warns_of_empty_graphs:
            warnings.warn("The CUDA Graph is empty. It was attempted to be captured on wrong device.", stacklevel=2)
        self.graphs.append(graph)

    def here(self) -> tuple[int, bool]:
        return self.stream, self.recording_now and self.stream not in self.apart

    def intact(self, stream: int) -> bool:
        return stream in self.apart or not self.silently_broken

    def recover(self, graph: FakeGraph) -> None:
        self.events.append("recover")
        if graph in self.graphs:
            self.graphs.remove(graph)
        graph.calls.clear()
        graph.storages.clear()

    def register(self, graph: FakeGraph, generator: Any) -> None:
        graph.generators.append(generator)

    def replay(self, graph: FakeGraph) -> None:
        state = torch.get_rng_state()
        if self.frozen_generator:
            torch.manual_seed(0)
        self.made += self.allocates_in_replay
        with torch.inference_mode():  # a driver does not care who made the memory
            for func, kept, result in graph.calls:
                if func.name().partition(".")[0] in self.skipped:
                    continue
                args, kwargs = tree_map(lambda leaf: leaf.tensor() if isinstance(leaf, _Outside) else leaf, kept)
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if _tensor(old) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
        if self.frozen_generator:
            torch.set_rng_state(state)

    def reset(self, graph: FakeGraph) -> None:
        self.graphs.remove(graph)
        graph.calls.clear()
        graph.storages.clear()

    def pool(self, graph: FakeGraph) -> Pool:
        return graph.pool

    def synchronize(self) -> None:
        pass

    def allocations(self) -> Allocations:
        return Allocations(self.made, self.made // 2, self.made * 512, self.made * 1024)

    def recording(self) -> Recording:
        segments = [*self.orphans]
        blocks = []
        for graph in self.graphs:
            for storage in graph.storages:
                if storage.nbytes():
                    segments.append(Segment(storage.data_ptr(), storage.nbytes(), pool=graph.pool))
                    blocks.append(LiveBlock(storage.data_ptr(), storage.nbytes(), storage.nbytes(), pool=graph.pool))
        return Recording(Device("cuda", 0), blocks=tuple(blocks), segments=tuple(segments))

    def stacks(self, addresses: Sequence[int]) -> dict[int, Stack]:
        return {address: self.stack_of[address] for address in addresses if address in self.stack_of}

    def poison_free(self, pool: Pool) -> int:
        total = 0
        for graph in self.graphs:
            read = {
                leaf.untyped_storage()._cdata
                for _, kept, _ in graph.calls
                for leaf in tree_leaves(kept)
                if _tensor(leaf)
            }
            for storage in graph.storages:
                if storage._cdata in read and graph.pool == pool:  # an intermediate
                    torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)
                    total += storage.nbytes()
        return total

    def random_state(self) -> Any:
        return torch.get_rng_state()

    def set_random_state(self, state: Any) -> None:
        torch.set_rng_state(state)

    def node_count(self) -> int | None:
        return self.nodes_so_far if self.tells_nodes else None

    def size(self, graph: FakeGraph) -> int | None:
        return sum(self.launches(func.name().partition(".")[0]) for func, *_ in graph.calls)

    def nodes(self, graph: FakeGraph) -> NodeList:
        if not graph.calls:
            raise LevelError("no nodes")
        found = []
        for func, *_ in graph.calls:
            name = func.name().partition(".")[0]
            found += [Node(self.kind(name), f"void at::native::{name[6:]}_kernel<float>(int)")] * self.launches(name)
        return NodeList(tuple(found), tuple((at, at + 1) for at in range(len(found) - 1)))

    def launches(self, name: str) -> int:
        return 0 if name.rpartition("::")[2] in VIEWS else 1

    def kind(self, name: str) -> str:
        return {"aten::copy_": "copy", "aten::clone": "copy", "aten::zeros": "memset"}.get(name, "kernel")

    def make_graphed_callables(
        self,
        callables: tuple[Callable[..., Any], ...],
        sample_args: tuple[tuple[Any, ...], ...],
        num_warmup_iters: int,
        allow_unused_input: bool,
        pool: Any,
        after_capture: Callable[[], None],
    ) -> tuple[Callable[..., Any], ...]:
        self.events.append(f"graph {len(callables)} callables, warm up {num_warmup_iters}")
        graphed = []
        for function in callables:
            if isinstance(function, torch.nn.Module):
                function.forward = self.wrap(function.forward)  # type: ignore[method-assign]
                graphed.append(function)
            else:
                graphed.append(self.wrap(function))
        for at in range(2 * len(callables)):
            self.orphans.append(Segment(2**40 + 2**22 * at, 2**20 * (at + 1), pool=pool))
            after_capture()
        return tuple(graphed)


def _tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)
