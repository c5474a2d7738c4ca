"""Every private torch call of the package, found by feature and never by version.

torch is imported only inside functions, so that a run without torch stays without it. Where a function is gone, the
caller gets ``None`` (or an empty answer) and says in a note what is then unknown.

| call | first seen | when it is gone |
| --- | --- | --- |
| ``torch._C._cuda_memoryStats`` | 1.4 | no CUDA counters |
| ``torch._C._cuda_resetPeakMemoryStats`` | 1.4 | no CUDA peaks |
| ``torch._C._cuda_resetAccumulatedMemoryStats`` | 1.4 | counts restart when a test resets them |
| ``torch._C._accelerator_getDeviceStats`` and resets | 2.9 | nothing: tests cannot call them either |
| ``torch._C._cuda_setMemoryFraction`` / ``_cuda_getMemoryFraction`` | 1.8 / 2.8 | hard limits end with no limit |
| ``torch.cuda.memory._record_memory_history``, ``_snapshot`` | 2.1 | no stacks, no live at the peak |
| ``torch._C._cuda_isHistoryEnabled`` | 2.1 | a history of the user's is not noticed before the session |
| ``torch._C._cuda_attach_out_of_memory_observer`` | 2.0 | out of memory is told after unwinding, without stacks |
| ``torch._C._cuda_hostMemoryStats`` | 2.6 | pinned host memory is not measured |
| ``torch._C._cuda_clearCublasWorkspaces`` | 1.13 | a library's workspace shows as memory held by C++ |
| ``torch.cuda._lazy_call`` | 1.0 | the history begins with the test after the first use of CUDA |
| ``torch.autograd.profiler_legacy._enable_profiler_legacy`` and its kin | 1.8 | no CPU fallback without a compiler |

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

Stats = dict[str, Any]


def imported() -> bool:
    """Whether this process has imported torch (wholly: a test may be importing it right now)."""
    module = sys.modules.get("torch")
    return module is not None and hasattr(module, "cuda") and hasattr(module, "_C")


def version() -> str | None:
    """The installed torch's version, from its metadata; torch is not imported."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def bindings() -> ModuleType:
    """``torch._C``, whose functions every spelling of the Python API looks up at each call."""
    import torch

    return torch._C


def cuda_device_count() -> int:
    """Visible CUDA devices; asks NVML first and initialises nothing."""
    import torch

    return torch.cuda.device_count()


def cuda_initialized() -> bool:
    """Whether something has initialised CUDA in this process."""
    import torch

    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def allocator_backend() -> str:
    """``native`` or ``cudaMallocAsync``, ``pluggable`` for somebody's own; ``cpu`` in a build without CUDA."""
    import torch

    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return "cpu"
    try:
        return str(torch.cuda.get_allocator_backend())
    except (AttributeError, RuntimeError):
        return "pluggable"


def cuda_function(name: str) -> Callable[..., Any] | None:
    """The function ``name`` of ``torch._C``, or ``None`` where this build has none."""
    return getattr(bindings(), name, None)


def total_memory(index: int) -> int:
    """Bytes of memory on the card; initialises CUDA."""
    import torch

    return int(torch.cuda.get_device_properties(index).total_memory)


def empty_cache() -> None:
    """Give cached segments back to the driver; nothing before CUDA is initialised."""
    import torch

    torch.cuda.empty_cache()


def memory_fraction(index: int) -> float:
    """The fraction of the card that the process may take; all of it, torch's default, where torch cannot tell."""
    get = cuda_function("_cuda_getMemoryFraction")
    try:
        fraction = 1.0 if get is None else float(get(index))
    except RuntimeError:  # cudaMallocAsync does not keep it
        return 1.0
    return fraction if 0.0 <= fraction <= 1.0 else 1.0  # or answers with whatever lies there


def set_memory_fraction(index: int, fraction: float) -> None:
    """Limit what the process may reserve on the card."""
    set_ = cuda_function("_cuda_setMemoryFraction")
    if set_ is None:
        raise RuntimeError("this build of torch cannot limit CUDA memory (torch._C._cuda_setMemoryFraction is missing)")
    set_(fraction, index)


def synchronize(index: int) -> None:
    """Wait for a card, unless a stream of this thread is capturing: then waiting would break the capture."""
    import torch

    if not capturing():
        torch.cuda.synchronize(index)


def capturing() -> bool:
    """Whether the current stream is capturing a CUDA graph."""
    import torch

    return cuda_initialized() and bool(torch.cuda.is_current_stream_capturing())


def clear_workspaces() -> None:
    """Free cuBLAS workspaces and collect CUDA memory that was shared with other processes."""
    import torch

    clear = cuda_function("_cuda_clearCublasWorkspaces")
    if clear is not None:
        clear()
    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


def workspace_sizes(index: int) -> frozenset[int]:
    """Bytes of the workspaces that cuBLAS and cuBLASLt take from the allocator, for each thread and stream.

    From the environment variables that set them, else torch's defaults by the card's compute capability.
    """
    import os

    import torch

    written = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    parts = [part for part in written.split(":") if part]
    if len(parts) >= 2 and len(parts) % 2 == 0 and all(part.isdecimal() for part in parts):
        pairs = zip(parts[::2], parts[1::2], strict=True)
        blas = sum(int(size) * int(number) for size, number in pairs) * 1024
    else:
        hopper_or_later = torch.cuda.get_device_capability(index)[0] >= 9
        blas = 4096 * 8 * 1024 if hopper_or_later else (4096 * 2 + 16 * 8) * 1024
    light = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    sizes = {blas, int(light) * 1024} if light.isdecimal() else {blas, 1024 * 1024, 32 * 1024 * 1024}
    return frozenset(sizes - {0})


def when_cuda_starts(action: Callable[[], None]) -> None:
    """Run ``action`` once CUDA is initialised, or now if it is."""
    import torch

    torch.cuda._lazy_call(action)  # type: ignore[no-untyped-call]


def history_enabled() -> bool:
    """Whether somebody keeps the allocator's history."""
    enabled = cuda_function("_cuda_isHistoryEnabled")
    return enabled is not None and cuda_initialized() and bool(enabled())


def history_starter(max_entries: int) -> Callable[[], None]:
    """What starts the allocator's history anew: Python stacks of allocations, at most ``max_entries`` events a card."""
    import inspect
    from functools import partial

    import torch

    record = torch.cuda.memory._record_memory_history
    wanted = {"context": "alloc", "stacks": "python", "max_entries": max_entries, "clear_history": True}
    known = inspect.signature(record).parameters
    return partial(record, "all", **{name: value for name, value in wanted.items() if name in known})


def stop_history() -> None:
    """Stop the allocator's history."""
    import torch

    torch.cuda.memory._record_memory_history(enabled=None)


def snapshot() -> Stats:
    """The allocator's segments, blocks and events on all cards."""
    import torch

    return dict(torch.cuda.memory._snapshot())


def observe_out_of_memory(observer: Callable[[int, int, int, int], None]) -> bool:
    """Have ``observer(device, requested, allowed, free)`` called before an out-of-memory error unwinds (bytes).

    It stays for the life of the process: torch offers no way to take it out.
    """
    attach = cuda_function("_cuda_attach_out_of_memory_observer")
    if attach is None:
        return False
    attach(observer)
    return True


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one that it was raised from, is torch's out-of-memory error."""
    import torch

    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, torch.OutOfMemoryError):
            return True
        seen.add(id(one))
        chain += [one.__cause__, one.__context__]
    return False


def profiler_modules() -> tuple[ModuleType, ModuleType] | None:
    """The profiler of torch and its older sibling, if they have the functions that start and stop a recording."""
    from torch.autograd import profiler, profiler_legacy

    newer, older = ("_prepare_profiler", "_enable_profiler"), ("_enable_profiler_legacy", "_disable_profiler_legacy")
    found = all(hasattr(profiler, name) for name in newer) and all(hasattr(profiler_legacy, name) for name in older)
    return (profiler, profiler_legacy) if found else None


def memory_profiler_config() -> Any:
    """What the older profiler is started with to record memory."""
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    return ProfilerConfig(
        ProfilerState.CPU,
        False,  # shapes
        True,  # memory
        False,  # stacks
        False,  # flops
        False,  # modules
        _ExperimentalConfig(),
    )
