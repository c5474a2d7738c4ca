"""What a CUDA build of torch has in Python, for a torch that was built without: where each part is to be put.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from cudamem_testing.originals import Original
from cudamem_testing.torch_api.process import torch

Changes = list[tuple[object, str, object]]


_CUDA = 1  # of c10::DeviceType
#: torch's own names of functions that a simulated card does not have; each raises with the reason.
UNSUPPORTED = (
    "_cuda_beginAllocateToPool",
    "_cuda_beginAllocateCurrentThreadToPool",
    "_cuda_endAllocateToPool",
    "_cuda_releasePool",
    "_cuda_changeCurrentAllocator",
    "_cuda_customAllocator",
    "_cuda_jiterator_compile_and_launch_kernel",
    "_cuda_beginAllocateCurrentStreamToPool",
    "_cuda_checkPoolLiveAllocations",
    "_cuda_getCheckpointState",
    "_cuda_setCheckpointPoolState",
    "_cuda_CUDAAllocator_AllocatorState",  # torch.compiler.reset() imports it
    "_cuda_cudaHostAllocator",
    "_cuda_getAllocator",
    "_cuda_getCurrentBlasHandle",
    "_cuda_getCurrentSolverHandle",
    *(f"_cuda_{verb}Cublas{light}WorkspaceSize" for verb in ("get", "set", "reset") for light in ("", "Lt")),
    *(f"_cuda_tunableop_{name}" for name in ("enable", "tuning_enable", "get_results", "read_file", "set_filename")),
    "_graph_pool_handle",
    "_MemPool",
)


class CardProperties(NamedTuple):
    """As ``torch.cuda.get_device_properties`` gives them."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    L2_cache_size: int
    gcnArchName: str  # noqa: N815 - torch's name
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 232448
    shared_memory_per_multiprocessor: int = 233472
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    clock_rate: int = 1_980_000
    memory_clock_rate: int = 2_619_000
    memory_bus_width: int = 5120
    uuid: str = "00000000-0000-0000-0000-000000000000"

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // 2**20}MB)"
        )


#: What the native part of simulated cards needs of torch's C++ headers: a word of each.
NEEDED = {
    "c10/core/CachingDeviceAllocator.h": "DeviceStats",
    "ATen/core/CachingHostAllocator.h": "HostStats",
    "ATen/native/RNN.h": "lstm_packed_cudnn_stub",
    "ATen/native/transformers/attention.h": "_fused_sdp_choice_stub",
    "torch/csrc/profiler/stubs/base.h": "registerCUDAMethods",
    "torch/csrc/profiler/combined_traceback.h": "std::vector<std::vector<uint64_t>> tracebacks;",
    "torch/csrc/profiler/unwind/unwind.h": "struct Frame",
    "ATen/Context.h": "bool userEnabledCuDNNSDP() const;",
    "torch/csrc/autograd/graph_task.h": "int get_current_graph_task_id();",
    "c10/core/AutogradState.h": "bool get_multithreading_enabled() const",
}


def lacking(include: Path | None = None) -> list[str]:
    """What of torch's internals simulated cards need and this version does not have, in words.

    ``include`` is the folder of torch's headers, that of the torch in use by default.
    """
    folder = Path(torch.__file__).parent / "include" if include is None else include
    found = []
    for header, word in NEEDED.items():
        file = folder / header
        if not file.is_file():
            found.append(f"no header {header}")
        elif word not in file.read_text(errors="replace"):
            found.append(f"no {word} in {header}")
    names = ("_exchange_device", "_maybe_exchange_device", "_queued_calls", "_lazy_init")
    return found + [f"no torch.cuda.{name}" for name in names if not hasattr(torch.cuda, name)]


def has_cuda_build() -> bool:
    """Whether this torch was built with CUDA."""
    return hasattr(torch._C, "_cuda_getDeviceCount")


def cuda_build(
    functions: Mapping[str, Callable[..., Any]], properties: CardProperties, refuse: Callable[..., Any]
) -> Changes:
    """What is to be put in place: owner, attribute, value. ``functions`` are those of ``torch._C`` by name."""
    stream, external, event = _streams()
    pool = _refused("MemPool", refuse)
    graph = _refused("CUDAGraph", refuse, "capture_begin", "capture_end", "replay", "reset", "pool")
    cuda, bindings = torch.cuda, torch._C
    found: Changes = [(bindings, name, function) for name, function in functions.items()]
    found += [(bindings, name, refuse) for name in UNSUPPORTED if name not in functions]
    found += [
        (bindings, "_has_cuda", True),
        (bindings, "_has_cudnn", True),
        (bindings, "_CudaDeviceProperties", CardProperties),
        (torch.version, "cuda", "13.0"),
        (cuda, "_cudart", _runtime(functions)),
        (cuda, "_initialized", False),
        (cuda, "_queued_calls", list(cuda._queued_calls)),
        (cuda, "_cached_device_count", None),
        (cuda, "_CudaDeviceProperties", CardProperties),
        (cuda, "_exchange_device", functions["_cuda_exchangeDevice"]),
        (cuda, "_maybe_exchange_device", functions["_cuda_maybeExchangeDevice"]),
        (cuda, "_get_device_properties", lambda index: properties),
        (cuda, "default_generators", ()),
        (cuda, "_device_count_nvml", lambda: -1),
        (cuda, "MemPool", pool),
        (cuda.memory, "MemPool", pool),
        (cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: False),
        (cuda.graphs, "_graph_pool_handle", refuse),
    ]
    found += [(bindings, name, function) for name, function in _BETWEEN_CARDS.items()]
    found.append((import_module("torch.cuda.nvtx"), "_nvtx", _NoMarks()))
    for owner in (cuda, cuda.streams):
        found += [(owner, "Stream", stream), (owner, "Event", event), (owner, "ExternalStream", external)]
    for owner in (cuda, cuda.graphs):
        found.append((owner, "CUDAGraph", graph))
    found.append((torch.UntypedStorage, "__new__", _storage_maker(torch.UntypedStorage.__new__)))
    return [*found, *_cudnn()]


def _scatter(tensor: Any, devices: Any, sizes: Any = None, dim: int = 0, streams: Any = None) -> tuple[Any, ...]:
    parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    return tuple(part.to(_card(device)).contiguous() for part, device in zip(parts, devices, strict=False))


def _gather(tensors: Any, dim: int, destination: int | None = None) -> Any:
    place = "cpu" if destination == -1 else tensors[0].device if destination is None else _card(destination)
    return torch.cat([one.to(place) for one in tensors], dim)


def _broadcast(tensor: Any, devices: Any) -> list[Any]:
    return [tensor.to(_card(device)) for device in devices]


def _broadcast_all(tensors: Any, devices: Any, most: int = 0) -> list[list[Any]]:
    return [[one.to(_card(device)) for one in tensors] for device in devices]


def _card(device: Any) -> Any:
    return f"cuda:{device}" if isinstance(device, int) else device


#: Copies between cards, as ``torch.nn.DataParallel`` asks for them.
_BETWEEN_CARDS: dict[str, Callable[..., Any]] = {
    "_scatter": _scatter,
    "_gather": _gather,
    "_broadcast": _broadcast,
    "_broadcast_coalesced": _broadcast_all,
}


class _NoMarks:
    """NVTX, whose marks have no effect here."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: 0


def set_generators(number: int, make_default: Callable[[int], None]) -> None:
    """Make the default generators of the cards. The next new generator after ``make_default`` is that of the card."""
    made = []
    for card in range(number):
        make_default(card)
        made.append(torch.Generator(device=f"cuda:{card}"))
    cuda: Any = torch.cuda
    cuda.default_generators = tuple(made)


def _storage_maker(original: Callable[..., Any]) -> Callable[..., Any]:
    """What makes storages of cards, which a build without CUDA does not know, by way of a tensor."""

    def make(cls: type, *arguments: Any, device: Any = None, **options: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            if device is not None:
                options["device"] = device
            return original(cls, *arguments, **options)
        content = arguments[0] if arguments else options.get("size", 0)
        if isinstance(content, int):
            return torch.empty(content, dtype=torch.uint8, device=device).untyped_storage()
        return torch.tensor(list(content), dtype=torch.uint8, device=device).untyped_storage()

    return make


def _refused(name: str, refuse: Callable[..., Any], *methods: str) -> type:
    """A class of ``torch.cuda`` that a simulated card does not have."""
    return type(name, (), {"__module__": "torch.cuda", **dict.fromkeys(("__new__", *methods), refuse)})


def _cudnn() -> Changes:
    def behind(name: str) -> Any:
        """The module behind the object that gives its settings as attributes."""
        found = import_module(name)
        return getattr(found, "m", found)

    module, recurrent = behind("torch.backends.cudnn"), behind("torch.backends.cudnn.rnn")
    version = SimpleNamespace(
        getVersionInt=lambda: 91900,
        getRuntimeVersion=lambda: (9, 19, 0),
        getCompileVersion=lambda: (9, 19, 0),
        is_cuda=True,
        RNNMode=SimpleNamespace(rnn_relu=0, rnn_tanh=1, lstm=2, gru=3),
    )
    found: Changes = [
        (torch._C, "_cudnn", version),
        (module, "_cudnn", version),
        (recurrent, "_cudnn", version),
        (module, "_init", lambda: True),
        (torch._C, "_cuda_get_cudnn_benchmark_limit", lambda: 10),
        (torch._C, "_cuda_set_cudnn_benchmark_limit", lambda limit: None),
    ]
    found += [(module, "version", lambda: 91900)] if hasattr(module, "version") else []
    return found


def _runtime(functions: Mapping[str, Callable[..., Any]]) -> Any:
    """The part of CUDA's runtime that torch's Python code uses."""
    none = lambda *arguments: 0  # noqa: E731
    return SimpleNamespace(
        cudaError=_Errors,
        cudaGetErrorString=lambda code: f"CUDA error {int(code)}",
        cudaMemGetInfo=functions["cudaMemGetInfo"],
        cudaProfilerStart=none,
        cudaProfilerStop=none,
        cudaHostRegister=none,
        cudaHostUnregister=none,
    )


class _Errors(int):
    """Codes of CUDA's runtime."""

    success = 0


def _streams() -> tuple[type, type, type]:
    """``torch.cuda.Stream``, ``ExternalStream`` and ``Event`` on torch's own streams of any device."""

    class Stream(torch.Stream):
        """A stream of a simulated card."""

        def __new__(cls, device: Any = None, priority: int = 0, **options: Any) -> Any:
            torch.cuda._lazy_init()  # type: ignore[no-untyped-call]
            if "stream_id" in options:
                return super().__new__(cls, **options)
            index = torch.cuda._utils._get_device_index(device, optional=True)
            return super().__new__(cls, torch.device("cuda", index), priority=priority)

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        @property
        def _as_parameter_(self) -> ctypes.c_void_p:
            return ctypes.c_void_p(self.cuda_stream)

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, -5

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def wait_stream(self, stream: Any) -> None:
            self.wait_event(stream.record_event())

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record(self)
            return event

        def __repr__(self) -> str:
            return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, self.cuda_stream

    class ExternalStream(Stream):
        """A stream of a simulated card by its number; all that another library makes are idle."""

        def __new__(cls, stream_ptr: int, device: Any = None, **options: Any) -> Any:
            index = torch.cuda._utils._get_device_index(device, optional=True)
            return super().__new__(cls, stream_id=stream_ptr, device_index=index, device_type=_CUDA)

    class Event(torch.Event):
        """An event of a simulated card."""

        _recorded: float | None = None
        _timed = False

        def __new__(
            cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
        ) -> Any:
            torch.cuda._lazy_init()  # type: ignore[no-untyped-call]
            made = super().__new__(cls, "cuda", enable_timing=enable_timing, blocking=blocking)
            made._timed = enable_timing
            return made

        @property
        def cuda_event(self) -> int:
            return int(getattr(self, "event_id", 0))

        def record(self, stream: Any = None) -> None:
            super().record(torch.cuda.current_stream() if stream is None else stream)
            self._recorded = Original.monotonic()

        def elapsed_time(self, end_event: Any) -> float:  # torch's own knows events of its own class alone
            if not (self._timed and end_event._timed):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if self._recorded is None or end_event._recorded is None:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            return float(1000 * (end_event._recorded - self._recorded))

        def wait(self, stream: Any = None) -> None:
            super().wait(torch.cuda.current_stream() if stream is None else stream)

        def __repr__(self) -> str:
            shown = f"{self.cuda_event:#x}" if self.cuda_event else "uninitialized"
            return f"<torch.cuda.Event {shown}>"

    for made in (Stream, ExternalStream, Event):
        made.__module__, made.__qualname__ = "torch.cuda.streams", made.__name__
    return Stream, ExternalStream, Event


def engine_lacks_cards(number: int) -> bool:
    """Whether autograd's engine ran before there were so many cards: then it has no queue for the last one.

    A tiny backward pass on it shows that, for which its threads start.
    """
    try:
        with torch.autograd.set_multithreading_enabled(True):
            x = torch.ones((), device=f"cuda:{number - 1}", requires_grad=True)
            (x * 1).backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return True
    return False


def renew_threads() -> None:
    """Make torch's pool of threads in this thread.

    In a forked process the next one that sets a number of threads does so. Those of several cards, which the first
    backward pass starts together, would do so at once, and torch would end the process.
    """
    torch.set_num_threads(torch.get_num_threads())


def use_first() -> None:
    """CUDA counts as used from now on: torch's C++ code asks for that once in the life of a process."""
    torch.cuda._lazy_init()  # type: ignore[no-untyped-call]


def load_shape_kernels() -> None:
    """Have torch know the shapes of results of all its operators, also those whose kernels for it are in Python."""
    import_module("torch._meta_registrations")


#: Held while the process enters or leaves a simulation.
entering_simulation = threading.RLock()


def attention_written_out(*arguments: Any, **options: Any) -> Any:
    """The result of attention as torch writes it out, without the choice of a kernel."""
    return torch._scaled_dot_product_attention_math(*arguments, **options)[0]


def ctc_loss_backward(*arguments: Any) -> Any:
    """The gradient of the CPU's CTC loss."""
    return torch.ops.aten._ctc_loss_backward(*arguments)
