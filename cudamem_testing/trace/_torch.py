"""The private torch calls of the data-flow engine, found by feature.

torch is imported only inside functions, so that importing the package stays cheap. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True, slots=True)
class EventTypes:
    """The classes by which the reader tells the profiler's events apart (``type(event.extra_fields)``).

    Asking an event for its ``tag`` builds an enum member and costs as much as the fields themselves; their class says
    the same for nothing. Tests of the reader pass classes of their own.
    """

    operator: type
    allocation: type
    out_of_memory: type
    python_call: type
    builtin_call: type
    tensor: type


@lru_cache(maxsize=1)
def event_types() -> EventTypes:
    """The classes of the installed torch."""
    from torch._C import _profiler as profiler

    return EventTypes(
        operator=profiler._ExtraFields_TorchOp,
        allocation=profiler._ExtraFields_Allocation,
        out_of_memory=profiler._ExtraFields_OutOfMemory,
        python_call=profiler._ExtraFields_PyCall,
        builtin_call=profiler._ExtraFields_PyCCall,
        tensor=profiler._TensorMetadata,
    )


def finished_results(profile: Any) -> Any:
    """What a stopped profiler recorded, or ``None`` while it runs or before it ran.

    Takes a ``torch.profiler.profile`` or the ``torch.autograd.profiler.profile`` inside it.
    """
    inner = getattr(profile, "profiler", profile)
    return getattr(inner, "kineto_results", None)


def event_tree(results: Any) -> Sequence[Any]:
    """The roots of the event tree, one or more a thread, each with its children in order of time."""
    roots: Sequence[Any] = results.experimental_event_tree()
    return roots


def profiler_is_running() -> bool:
    """Whether any profiler records in this process: on this thread, or started by another one."""
    import torch
    from torch.autograd import profiler

    return bool(torch._C._autograd._profiler_enabled()) or bool(getattr(profiler, "_is_profiler_enabled", False))


def disable_profiler() -> None:
    """Stop whatever profiler records on this thread and drop what it has; nothing when none does."""
    import torch

    if torch._C._autograd._profiler_enabled():
        torch._C._autograd._disable_profiler()


def operator_schemas(name: str) -> tuple[Any, ...]:
    """The schemas of every overload registered under ``name``; none for what is no operator."""
    import torch

    if "::" not in name:
        return ()  # the look-up raises for a name without a namespace: an annotation, a backward function
    try:
        return tuple(torch._C._jit_get_schemas_for_operator(name))
    except RuntimeError:  # a name that cannot be an operator's, such as "a::b::c d"
        return ()


def strided_bytes(tensor: Any) -> int:
    """Bytes from a tensor's first to its last element, as the profiler saw sizes and strides; 0 unless strided.

    The offset is not recorded: what lies before the first element of a view is not counted.
    """
    import torch

    if tensor.layout is not torch.strided:
        return 0
    extent = max((size * stride for size, stride in zip(tensor.sizes, tensor.strides, strict=True)), default=1)
    return int(extent) * int(tensor.dtype.itemsize)


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor, found out without running any code of its class."""
    import torch

    return issubclass(type(value), torch.Tensor)


def is_module(value: object) -> bool:
    """Whether a value is a module, found out without running any code of its class."""
    import torch

    return issubclass(type(value), torch.nn.Module)


def address_of(tensor: Any) -> tuple[str, int] | None:
    """Device and address of a tensor's storage; ``None`` for tensors without one (sparse, fake, meta, empty)."""
    import torch

    with torch._C.DisableTorchFunctionSubclass():
        try:
            pointer = torch.Tensor.untyped_storage(tensor).data_ptr()
            return (str(tensor.device), pointer) if pointer else None
        except (RuntimeError, NotImplementedError):  # layouts without storage; fake tensors refuse to tell
            return None


def gradient_of(tensor: Any) -> Any:
    """The gradient that autograd attached to a tensor, or ``None``; asking must not warn for tensors that get none."""
    import torch

    with torch._C.DisableTorchFunctionSubclass():
        return tensor.grad if tensor.is_leaf or tensor.retains_grad else None


def new_profiler() -> Any:
    """A ``torch.profiler.profile`` with every flag that the analysis needs, recording what the CPU issues.

    Allocators of all devices report to it; recording kernels as well would only cost time.
    """
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True)
