"""CUDA graphs: torch's own calls and NVIDIA's bindings, found by feature. Importing this module imports torch.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_KINDS = {
    "cudaGraphNodeTypeKernel": "kernel",
    "cudaGraphNodeTypeMemcpy": "copy",
    "cudaGraphNodeTypeMemset": "memset",
    "cudaGraphNodeTypeHost": "host",
    "cudaGraphNodeTypeGraph": "child graph",
    "cudaGraphNodeTypeEmpty": "empty",
    "cudaGraphNodeTypeWaitEvent": "event wait",
    "cudaGraphNodeTypeEventRecord": "event record",
    "cudaGraphNodeTypeMemAlloc": "allocation",
    "cudaGraphNodeTypeMemFree": "free",
    "cudaGraphNodeTypeConditional": "conditional",
}


def new_graph() -> Any:
    """A ``CUDAGraph`` that keeps its nodes: ``keep_graph`` (2.8), else debug mode."""
    try:
        return torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        graph = torch.cuda.CUDAGraph()
        graph.enable_debug_mode()  # type: ignore[no-untyped-call, unused-ignore]
        return graph


def instantiate(graph: Any) -> None:
    """Prepare a kept graph for replay; others are ready already."""
    if hasattr(graph, "instantiate") and hasattr(graph, "raw_cuda_graph"):
        with contextlib.suppress(RuntimeError):  # it was not kept
            graph.instantiate()


def clear_host_cache() -> None:
    """Free unused pinned memory before a capture, as ``torch.cuda.graph`` does (2.9)."""
    clear = getattr(torch._C, "_host_emptyCache", None)
    if clear is not None:
        clear()


def expired(reference: StorageWeakRef) -> bool:
    """Whether a storage was freed."""
    return bool(reference.expired())  # type: ignore[no-untyped-call]


@functools.cache
def storages_tell_their_death() -> bool:
    """Whether a storage's Python object dies together with its memory; older versions lack this for weak references."""
    tensor, seen = torch.empty(1), list[bool]()
    storage = tensor.untyped_storage()
    weak, watched = StorageWeakRef(storage), weakref.ref(storage, lambda _: seen.append(True))  # type: ignore[no-untyped-call]
    del storage, tensor
    told = bool(seen)
    del weak, watched
    return told


def storage_bytes(reference: StorageWeakRef) -> torch.Tensor | None:
    """All bytes of a live storage as a tensor; ``None`` if it was freed."""
    if expired(reference):
        return None
    storage: Any = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    if storage is None:
        return None
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def overwrite(address: int, size: int, device: torch.device, value: int) -> bool:
    """Fill allocator memory that no tensor uses; returns whether torch could."""
    make = getattr(torch._C, "_construct_storage_from_data_pointer", None)
    if make is None:
        return False
    torch.empty(0, dtype=torch.uint8, device=device).set_(make(address, device, size)).fill_(value)
    return True


def fast_snapshot() -> list[dict[str, Any]]:
    """The allocator's segments, without events if torch can leave them out (2.11)."""
    take = torch.cuda.memory_snapshot
    known = inspect.signature(take).parameters
    return list(take(include_traces=False) if "include_traces" in known else take())  # type: ignore[no-untyped-call, unused-ignore]


def graphs_without_gradients() -> bool:
    """Whether ``make_graphed_callables`` accepts callables without a gradient; older versions do not."""
    try:
        return "len(outputs_grad)" in inspect.getsource(torch.cuda.make_graphed_callables)
    except (OSError, TypeError):
        return False


def cuda_bindings() -> Any:
    """NVIDIA's ``cuda.bindings``: the modules ``runtime`` and ``driver``, or ``None``."""
    try:
        from cuda.bindings import driver, runtime
    except ImportError:
        return None
    return runtime, driver


def captured_nodes() -> int | None:
    """Nodes that the current stream has captured so far; ``None`` without the bindings."""
    bindings = cuda_bindings()
    if bindings is None:
        return None
    runtime, _ = bindings
    stream = torch.cuda.current_stream().cuda_stream
    error, *found = runtime.cudaStreamGetCaptureInfo(stream)
    # The graph is the third value in every version: status, id, graph, dependencies...
    if int(error) or len(found) < 3:
        return None
    error, *answer = runtime.cudaGraphGetNodes(found[2], numNodes=0)
    return None if int(error) else int(answer[-1])


def capture_intact(stream: int) -> bool:
    """Whether the capture on a stream is still valid in the driver; true without the bindings."""
    bindings = cuda_bindings()
    if bindings is None:
        return True
    error, status = bindings[0].cudaStreamIsCapturing(stream)
    broken = bindings[0].cudaStreamCaptureStatus.cudaStreamCaptureStatusInvalidated
    return bool(int(error)) or status != broken


def count_nodes(graph: Any) -> int | None:
    """Nodes of a captured graph; ``None`` without the bindings or a kept graph."""
    bindings = cuda_bindings()
    if bindings is None or not hasattr(graph, "raw_cuda_graph"):
        return None
    try:
        error, *answer = bindings[0].cudaGraphGetNodes(graph.raw_cuda_graph(), numNodes=0)
    except RuntimeError:
        return None
    return None if int(error) else int(answer[-1])


def raw_nodes(graph: Any) -> tuple[list[tuple[str, str]], list[tuple[int, int]]] | None:
    """Kinds and kernel names of a graph's nodes, and its edges; ``None`` without the bindings or a kept graph."""
    bindings = cuda_bindings()
    if bindings is None or not hasattr(graph, "raw_cuda_graph"):
        return None
    runtime, driver = bindings
    try:
        raw = graph.raw_cuda_graph()
    except RuntimeError:
        return None
    _, number = _answer(runtime.cudaGraphGetNodes(raw, numNodes=0))
    nodes, number = _answer(runtime.cudaGraphGetNodes(raw, numNodes=number)) if number else ([], 0)
    words = {getattr(runtime.cudaGraphNodeType, name, None): word for name, word in _KINDS.items()}
    found, places = [], {}
    for place, node in enumerate(nodes[:number]):
        (kind,) = _answer(runtime.cudaGraphNodeGetType(node))
        places[int(node)] = place
        word = words.get(kind, str(kind))
        found.append((word, _kernel_name(driver, node) if word == "kernel" else ""))
    *_, arrows = _answer(runtime.cudaGraphGetEdges(raw, numEdges=0))
    if not arrows:
        return found, []
    sources, targets, *_ = _answer(runtime.cudaGraphGetEdges(raw, numEdges=arrows))
    return found, [(places[int(a)], places[int(b)]) for a, b in zip(sources, targets, strict=True)]


def _kernel_name(driver: Any, node: Any) -> str:
    error, parameters = driver.cuGraphKernelNodeGetParams(driver.CUgraphNode(init_value=int(node)))
    if int(error):
        return ""
    if int(parameters.func):
        error, name = driver.cuFuncGetName(driver.CUfunction(init_value=int(parameters.func)))
    else:  # from a library without a context
        error, name = driver.cuKernelGetName(driver.CUkernel(init_value=int(parameters.kern)))
    if int(error):
        return ""
    return demangled(name.decode() if isinstance(name, bytes) else str(name))


def _answer(result: Any) -> tuple[Any, ...]:
    error, *answer = result
    if int(error):
        raise RuntimeError(f"the driver answered {error}")
    return tuple(answer)


def demangled(name: str) -> str:
    """A C++ name demangled by the runtime's ``__cxa_demangle``; unchanged if that is missing."""
    demangle = _demangler()
    if demangle is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    pointer = demangle(name.encode(), None, None, ctypes.byref(status))
    if not pointer:
        return name
    text: str = ctypes.cast(pointer, ctypes.c_char_p).value.decode()  # type: ignore[union-attr]
    ctypes.CDLL(None).free(ctypes.c_void_p(pointer))
    return text


@functools.cache
def _demangler() -> Callable[..., Any] | None:
    for library in (None, "libstdc++.so.6", "libc++.1.dylib"):
        with contextlib.suppress(OSError, AttributeError):
            function = ctypes.CDLL(library).__cxa_demangle
            function.restype = ctypes.c_void_p
            return function
    return None


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Make ``stream`` current inside, and restore the previous one afterwards, also if a capture on it failed."""
    before = torch.cuda.current_stream()
    torch.cuda.set_stream(stream)
    try:
        yield
    finally:
        torch.cuda.set_stream(before)
