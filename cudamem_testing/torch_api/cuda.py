"""CUDA's caching allocator: cards, limits, workspaces. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from cudamem_testing.safe_access import is_a
from cudamem_testing.torch_api.process import bindings, imported, torch

#: Attribute of a replacement for ``CUDAGraph.capture_begin`` that holds the capturing streams.
NOTICED = "cudamem_streams"
#: The attribute of ``torch._C`` with the names of the simulated cards, while there are any.
SIMULATED = "_cudamem_simulated_cards"
#: The attribute of ``torch._C`` with what makes an allocation on them fail.
SIMULATED_TRAP = "_cudamem_simulated_trap"
#: Functions of torch: the fraction of a card by its index, and the settings, if torch shows them.
SettingsFunctions = tuple[Callable[[int], float], Callable[[], str] | None]
#: The threads of this process.
TASKS = "/proc/self/task"


class SimulatedTrap(NamedTuple):
    """Native functions: ``put`` sets the trap of a card, ``read`` says what it met, ``clear`` removes it."""

    put: Callable[..., int]
    read: Callable[..., object]
    clear: Callable[..., object]


def simulated_cards() -> tuple[str, ...]:
    """Names of the cards that are simulated in this process now; torch is not imported for it."""
    torch = sys.modules.get("torch")
    names: tuple[str, ...] = getattr(getattr(torch, "_C", None), SIMULATED, ())
    return names


def simulated_trap() -> SimulatedTrap | None:
    """What makes an allocation on simulated cards fail; ``None`` if no card is simulated."""
    found: SimulatedTrap | None = getattr(bindings(), SIMULATED_TRAP, None)
    return found


def cuda_device_count() -> int:
    """Visible CUDA devices; asks NVML first and initialises nothing."""
    return torch.cuda.device_count()


def cuda_initialized() -> bool:
    """Whether something has initialised CUDA in this process."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def fork_check() -> Callable[[], bool]:
    """Torch's function that says whether this process was forked from one that used CUDA, and so cannot use it."""
    return cuda_function("_cuda_isInBadFork") or bool


def allocator_backend() -> str:
    """``native``, ``cudaMallocAsync``, ``pluggable`` for a custom one; ``cpu`` in a build without CUDA."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return "cpu"
    try:
        return str(torch.cuda.get_allocator_backend())
    except (AttributeError, RuntimeError):
        return "pluggable"


def cuda_function(name: str) -> Callable[..., Any] | None:
    """The function ``name`` of ``torch._C``, or ``None`` if this build has none."""
    return getattr(bindings(), name, None)


def total_memory(index: int) -> int:
    """Bytes of memory on the card; initialises CUDA."""
    return int(torch.cuda.get_device_properties(index).total_memory)


def memory_in_use(index: int) -> int | None:
    """Bytes of a card that all processes use, from the driver; ``None`` if unavailable, or while capturing."""
    try:
        if capturing():
            return None
        free, total = torch.cuda.mem_get_info(index)
    except (AssertionError, RuntimeError):  # a build without CUDA raises the first
        return None
    return int(total - free)


def transform_plans(index: int) -> int | None:
    """Number of plans that cuFFT keeps for a card, outside the allocator; ``None`` if torch does not show it."""
    try:
        return int(torch.backends.cuda.cufft_plan_cache[index].size)
    except (AssertionError, AttributeError, RuntimeError):
        return None


def graph_class() -> type:
    """``torch.cuda.CUDAGraph``; a class that cannot be used in a build without CUDA."""
    return torch.cuda.CUDAGraph


def current_stream() -> Any:
    """The current stream of this thread; ``None`` before CUDA is initialised."""
    return torch.cuda.current_stream() if cuda_initialized() else None


def empty_cache() -> None:
    """Return cached segments to the driver; does nothing before CUDA is initialised, or while capturing."""
    if not capturing():
        torch.cuda.empty_cache()


def memory_fraction(index: int) -> float:
    """The fraction of the card that the process may use; 1.0, torch's default, if torch does not show it."""
    get = cuda_function("_cuda_getMemoryFraction")
    try:
        fraction = 1.0 if get is None else float(get(index))
    except RuntimeError:  # cudaMallocAsync does not keep it
        return 1.0
    return fraction if 0.0 <= fraction <= 1.0 else 1.0  # or returns uninitialised memory


def set_memory_fraction(index: int, fraction: float) -> None:
    """Limit what the process may reserve on the card."""
    set_ = cuda_function("_cuda_setMemoryFraction")
    if set_ is None:
        raise RuntimeError("this build of torch cannot limit CUDA memory (torch._C._cuda_setMemoryFraction is missing)")
    set_(fraction, index)


def allocator_settings() -> str | None:
    """The allocator's settings as in ``PYTORCH_ALLOC_CONF``, those given last; ``None`` if torch does not show them."""
    get = cuda_function("_accelerator_getAllocatorSettings")
    return None if get is None else str(get())


def settings_functions(indexes: Iterable[int]) -> SettingsFunctions | None:
    """What ``memory_fraction`` and ``allocator_settings`` call, to be looked up once.

    ``None`` before CUDA is initialised, and where what they return of these cards cannot be used as it is.
    """
    fraction = cuda_function("_cuda_getMemoryFraction")
    if fraction is None or not cuda_initialized() or allocator_backend() != "native":
        return None
    try:
        for index in indexes:
            fraction(index)
    except RuntimeError:
        return None
    return fraction, cuda_function("_accelerator_getAllocatorSettings")


def set_allocator_settings(settings: str) -> None:
    """Change settings of the allocator while the process runs.

    Raises:
        RuntimeError: this torch cannot, or refuses them.
    """
    set_ = cuda_function("_accelerator_setAllocatorSettings")
    if set_ is None:
        raise RuntimeError("this torch cannot change them while it runs")
    set_(settings)


def synchronize(index: int) -> None:
    """Wait for a card, unless a stream is capturing: waiting would break the capture."""
    if not capturing():
        torch.cuda.synchronize(index)


def capturing() -> bool:
    """Whether a stream is capturing a CUDA graph: then do not collect garbage and do not wait for a card.

    Asking the driver does not disturb a capture. It is asked for the current stream of this thread; for the device's
    default stream, whose query fails while another stream that waits for it captures, as those of other libraries do;
    and for the streams of any thread on which captures were noticed (see
    :class:`~cudamem_testing.recorders.captures.Captures`).
    """
    if not imported():
        return False
    if not cuda_initialized():
        return False
    begin: Any = getattr(graph_class(), "capture_begin", None)
    noticed: Iterable[Any] = getattr(begin, NOTICED, ())
    return _captures(None) or any(map(_captures, (torch.cuda.default_stream(), *noticed)))


def _captures(stream: Any) -> bool:
    """Whether a stream, ``None`` for the current one, is capturing."""
    with torch.cuda.stream(stream):
        try:
            return bool(torch.cuda.is_current_stream_capturing())
        except RuntimeError as error:  # cudaErrorStreamCaptureImplicit, unless the card has failed
            return "captur" in str(error)


def compiler_pools() -> frozenset[tuple[int, int]]:
    """Private pools of this thread that CUDA graphs of ``torch.compile(mode="reduce-overhead")`` share."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    containers = getattr(getattr(trees, "local", None), "tree_manager_containers", None) or {}
    managers = [getattr(one, "tree_manager", None) for one in [*containers.values()]]
    pools = (getattr(one, "cuda_graphs_thread_pool", None) for one in managers)
    return frozenset(tuple(pool) for pool in pools if pool is not None)


def clear_workspaces() -> None:
    """Free cuBLAS workspaces and CUDA memory shared with other processes; does nothing while capturing."""
    if capturing():
        return
    clear = cuda_function("_cuda_clearCublasWorkspaces")
    if clear is not None:
        clear()
    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


def take_workspaces(index: int, *, backward: bool = False) -> None:
    """Let cuBLAS and cuBLASLt allocate their workspaces for the current stream of a card, with two tiny products.

    They have some for each thread: with ``backward`` in autograd's, if that runs. Does nothing while capturing, or
    while a user's mode would see the products.
    """
    modes = (getattr(bindings(), f"_len_torch_{kind}_stack", int)() for kind in ("function", "dispatch"))
    if capturing() or any(modes):
        return

    def multiply() -> None:
        with suppress(RuntimeError), torch.no_grad():  # deterministic algorithms may be required
            x = torch.empty(16, 16, device=f"cuda:{index}", dtype=torch.float32)
            torch.addmm(x[0], x, x)
            torch.mm(x, x)

    if not backward:
        multiply()
    elif simulated_cards() or has_backward_thread(index):  # those of a simulated card need no thread
        in_backward_thread(index, multiply)


@cache
def _in_backward() -> Any:
    """A function whose backward pass is an action; made once, because a class that is dropped is a reference cycle."""

    class InBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, action: Callable[[], object]) -> Any:
            ctx.action = action
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, None]:
            ctx.action()
            return grads[0], None

    return InBackward


def has_backward_thread(index: int) -> bool:
    """Whether autograd's thread of a card, in which backward passes run, is there: from the first of them on.

    Torch gives it no name in Python, the operating system does; ``False`` where that has no ``/proc``.
    """
    names = []
    with suppress(OSError):
        for task in os.listdir(TASKS):
            with suppress(OSError), open(f"{TASKS}/{task}/comm") as file:  # a thread may have ended
                names.append(file.read().strip())
    return f"pt_autograd_{index}" in names


def in_backward_thread(index: int, action: Callable[[], object]) -> None:
    """Run ``action`` in autograd's thread of a card, which starts if need be. What it raises is raised here.

    On a simulated card in this thread, in a backward pass: its workspaces are those of autograd's thread.
    """
    in_thread = torch.autograd.set_multithreading_enabled  # after inference mode, which sets it
    with torch.inference_mode(False), torch.enable_grad(), in_thread(not simulated_cards()):
        x = torch.zeros((), device=f"cuda:{index}", requires_grad=True)
        torch.autograd.grad(_in_backward().apply(x, action), x)


def workspace_sizes() -> frozenset[int]:
    """Possible sizes in bytes of the workspaces that cuBLAS and cuBLASLt allocate for each thread and stream.

    From the environment variables that set them, otherwise torch's defaults, which depend on the card.
    """
    written = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    parts = [part for part in written.split(":") if part]
    if len(parts) >= 2 and len(parts) % 2 == 0 and all(part.isdecimal() for part in parts):
        pairs = zip(parts[::2], parts[1::2], strict=True)
        blas = {sum(int(size) * int(number) for size, number in pairs) * 1024}
    else:
        blas = {4096 * 8 * 1024, (4096 * 2 + 16 * 8) * 1024}
    light = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    sizes = {int(light) * 1024} if light.isdecimal() else {1024 * 1024, 32 * 1024 * 1024}
    return frozenset((blas | sizes) - {0})


def when_cuda_starts(action: Callable[[], None]) -> None:
    """Run ``action`` once CUDA is initialised, or now if it is."""
    torch.cuda._lazy_call(action)  # type: ignore[no-untyped-call]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception is torch's out-of-memory error."""
    return is_a(error, torch.OutOfMemoryError)
