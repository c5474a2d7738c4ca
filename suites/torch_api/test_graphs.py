"""Calls about graphs that need no card: names, bytes of storages, and NVIDIA's bindings by a stand-in."""

from __future__ import annotations

import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cudamem_testing.torch_api import graphs
from cudamem_testing.torch_api.modes import current_node, noted
from cudamem_testing.torch_api.trees import flatten, unflatten


def test_names_of_kernels() -> None:
    assert graphs.demangled("_ZN2at6native3addIfEEvi") == "void at::native::add<float>(int)"
    assert graphs.demangled("_Zbroken") == "_Zbroken"
    assert graphs.demangled("triton_poi_fused_0") == "triton_poi_fused_0"


def test_without_a_runtime_library_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_demangler", lambda: None)
    assert graphs.demangled("_ZN2at6native3addIfEEvi") == "_ZN2at6native3addIfEEvi"


def test_bytes_of_a_storage() -> None:
    tensor = torch.tensor([1, 2], dtype=torch.uint8)
    reference = StorageWeakRef(tensor[1:].untyped_storage())
    found = graphs.storage_bytes(reference)
    assert found is not None
    found.fill_(7)
    assert tensor.tolist() == [7, 7]
    del tensor, found
    assert graphs.storage_bytes(reference) is None


def test_overwriting_memory() -> None:
    tensor = torch.zeros(4, dtype=torch.uint8)
    assert graphs.overwrite(tensor.data_ptr() + 1, 2, torch.device("cpu"), 9)
    assert tensor.tolist() == [0, 9, 9, 0]


def test_overwriting_with_a_torch_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_construct_storage_from_data_pointer")
    assert not graphs.overwrite(0, 2, torch.device("cpu"), 9)


def test_a_graph_keeps_its_nodes_where_torch_can(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept:
        def __init__(self, keep_graph: bool = False) -> None:
            self.told = f"keep_graph={keep_graph}"

    class Older:
        told = ""

        def enable_debug_mode(self) -> None:
            self.told = "debug mode"

    for kind, told in ((Kept, "keep_graph=True"), (Older, "debug mode")):
        monkeypatch.setattr(torch.cuda, "CUDAGraph", kind)
        assert graphs.new_graph().told == told


class Driver:
    """Three nodes: memset -> kernel -> copy, a kernel without a name, and one of a library that has no context."""

    CUgraphNode = CUfunction = CUkernel = staticmethod(lambda init_value: init_value)

    def cuGraphKernelNodeGetParams(self, node: int) -> tuple[int, Any]:  # noqa: N802
        return 0, SimpleNamespace(func=node * 10 if node < 14 else 0, kern=node * 10 if node > 14 else 0)

    def cuFuncGetName(self, function: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, b"_ZN2at6native3addIfEEvi"

    def cuKernelGetName(self, kernel: int) -> tuple[int, bytes | None]:  # noqa: N802
        return (0, b"reduce") if kernel else (1, None)


class Runtime:
    """What the bindings answer, each with an error first."""

    def __init__(self, *, extra: bool) -> None:
        words = ("cudaGraphNodeTypeKernel", "cudaGraphNodeTypeMemcpy", "cudaGraphNodeTypeMemset")
        self.cudaGraphNodeType = SimpleNamespace(**{word: place for place, word in enumerate(words)})
        self.kinds = {11: 2, 12: 0, 13: 1, 14: 0, 15: 0}
        self.extra = ("data",) if extra else ()

    def cudaGraphGetNodes(self, graph: int, numNodes: int = 0) -> tuple[Any, ...]:  # noqa: N802, N803
        return 0, [*self.kinds][:numNodes], len(self.kinds)

    def cudaGraphNodeGetType(self, node: int) -> tuple[int, int]:  # noqa: N802
        return 0, self.kinds[node]

    def cudaGraphGetEdges(self, graph: int, numEdges: int = 0) -> tuple[Any, ...]:  # noqa: N802, N803
        return 0, [11, 12], [12, 13], *self.extra, 2

    def cudaStreamGetCaptureInfo(self, stream: int) -> tuple[Any, ...]:  # noqa: N802
        return 0, "active", 5, 77, [], *self.extra, 0


@pytest.mark.parametrize("extra", [True, False], ids=["edge data", "older"])
def test_nodes_through_the_bindings(monkeypatch: pytest.MonkeyPatch, extra: bool) -> None:
    package, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    bindings.runtime, bindings.driver = Runtime(extra=extra), Driver()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=3))
    found = graphs.raw_nodes(SimpleNamespace(raw_cuda_graph=lambda: 77))
    add = "void at::native::add<float>(int)"
    assert found is not None
    assert found[0] == [("memset", ""), ("kernel", add), ("copy", ""), ("kernel", ""), ("kernel", "reduce")]
    assert found[1] == [(0, 1), (1, 2)]
    assert graphs.captured_nodes() == graphs.count_nodes(SimpleNamespace(raw_cuda_graph=lambda: 77)) == 5
    assert graphs.count_nodes(SimpleNamespace()) is None
    assert graphs.raw_nodes(SimpleNamespace()) is None  # a torch that keeps no graph


def test_a_capture_that_the_driver_invalidated(monkeypatch: pytest.MonkeyPatch) -> None:
    answer: list[tuple[int, str]] = [(0, "active"), (0, "invalidated"), (1, "invalidated")]
    runtime = SimpleNamespace(
        cudaStreamIsCapturing=lambda stream: answer.pop(0) if stream == 7 else None,
        cudaStreamCaptureStatus=SimpleNamespace(cudaStreamCaptureStatusInvalidated="invalidated"),
    )
    monkeypatch.setattr("cudamem_testing.torch_api.graphs.cuda_bindings", lambda: (runtime, None))
    assert [graphs.capture_intact(7) for _ in range(3)] == [True, False, True]
    monkeypatch.setattr("cudamem_testing.torch_api.graphs.cuda_bindings", lambda: None)
    assert graphs.capture_intact(7)


def test_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert graphs.raw_nodes(SimpleNamespace(raw_cuda_graph=lambda: 77)) is None
    assert graphs.captured_nodes() is None
    assert graphs.count_nodes(SimpleNamespace(raw_cuda_graph=lambda: 77)) is None


def test_the_stream_comes_back_also_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = ["outer"]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    with graphs.on_stream("side"):
        assert streams[-1] == "side"
    with pytest.raises(KeyError), graphs.on_stream("side"):
        raise KeyError
    assert streams == ["outer", "side", "outer", "side", "outer"]


def test_support_for_callables_without_gradients_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert graphs.graphs_without_gradients()
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda: None)
    assert not graphs.graphs_without_gradients()


def test_a_mode_tells_each_operator() -> None:
    seen: list[str] = []

    class Noter:
        def called(self, name: str, inputs: Any, written: Any) -> None:
            seen.append(f"{name} {len(inputs)} {len(written)}")

        def returned(self, name: str, outputs: Any) -> None:
            seen.append(f"-> {len(outputs)}")

    x = torch.ones(3)
    with noted(Noter()):
        x.add_(1)
        torch.cat([x, x])
        torch.mul(x, x, out=x)
    assert seen == ["aten::add_ 1 1", "-> 1", "aten::cat 2 0", "-> 1", "aten::mul 3 1", "-> 1"]


def test_the_node_that_is_running() -> None:
    names: list[str] = []
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: names.append(current_node()))
    y.sum().backward()
    assert current_node() == ""
    assert names == ["MulBackward0"]


def test_trees_have_paths() -> None:
    leaves, spec = flatten(({"a": [1, 2]}, 3))
    assert leaves == [("[0]['a'][0]", 1), ("[0]['a'][1]", 2), ("[1]", 3)]
    assert unflatten([4, 5, 6], spec) == ({"a": [4, 5]}, 6)


def test_detection_of_reported_storage_deaths_matches_torch() -> None:
    graphs.storages_tell_their_death.cache_clear()
    held, seen = [torch.ones(3)], []
    storage = held[0].untyped_storage()
    kept = StorageWeakRef(storage), weakref.ref(storage, lambda _: seen.append("dead"))
    del storage, held[0]
    assert graphs.expired(kept[0])
    assert graphs.storages_tell_their_death() is (seen == ["dead"])
