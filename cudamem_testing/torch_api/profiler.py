"""torch's profiler: recordings and their events. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cudamem_testing.torch_api.lacking import needed_for
from cudamem_testing.torch_api.process import torch

if TYPE_CHECKING:
    from types import ModuleType

_READING = "reading torch's profiler"


def profiler_modules() -> tuple[ModuleType, ModuleType] | None:
    """The profiler and its older version, if they have the functions that start and stop a recording."""
    from torch.autograd import profiler, profiler_legacy

    newer, older = ("_prepare_profiler", "_enable_profiler"), ("_enable_profiler_legacy", "_disable_profiler_legacy")
    found = all(hasattr(profiler, name) for name in newer) and all(hasattr(profiler_legacy, name) for name in older)
    return (profiler, profiler_legacy) if found else None


@needed_for(_READING)
def memory_profiler_config() -> Any:
    """The older profiler's configuration for recording memory."""
    profiler = torch._C._profiler
    return profiler.ProfilerConfig(
        profiler.ProfilerState.CPU,
        False,  # shapes
        True,  # memory
        False,  # stacks
        False,  # flops
        False,  # modules
        profiler._ExperimentalConfig(),
    )


class EventTypes(NamedTuple):  # created at every session start, so not a dataclass, which takes five times as long
    """The classes that identify the profiler's events (``type(event.extra_fields)``).

    Reading an event's ``tag`` builds an enum member and costs as much as the fields themselves; their class says
    the same for nothing. Tests of the reader pass classes of their own.
    """

    operator: type
    allocation: type
    out_of_memory: type
    python_call: type
    builtin_call: type
    tensor: type


@lru_cache(maxsize=1)
@needed_for(_READING)
def event_types() -> EventTypes:
    """The classes of the installed torch."""
    profiler = torch._C._profiler
    return EventTypes(
        operator=profiler._ExtraFields_TorchOp,
        allocation=profiler._ExtraFields_Allocation,
        out_of_memory=profiler._ExtraFields_OutOfMemory,
        python_call=profiler._ExtraFields_PyCall,
        builtin_call=profiler._ExtraFields_PyCCall,
        tensor=profiler._TensorMetadata,
    )


@needed_for(_READING)
def new_profiler() -> Any:
    """A profiler with every flag that the analysis needs, recording CPU events; a context manager.

    Allocators of all devices report to it; recording kernels as well would only cost time. It is the one inside
    ``torch.profiler.profile``, which itself is a reference cycle and keeps its recording until it is collected.
    """
    return torch.autograd.profiler.profile(use_kineto=True, record_shapes=True, profile_memory=True, with_stack=True)


@needed_for(_READING)
def profiler_is_running() -> bool:
    """Whether a profiler is recording in this process, on this thread or started by another one.

    Does not include torch's older profiler (:func:`older_profiler_is_running`).
    """
    return _newer_is_enabled() or bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def older_profiler_is_running() -> bool:
    """Whether ``torch.autograd.profiler_legacy`` records on this thread.

    It may belong to a recorder, which stops it when another profiler starts (:func:`older_profiler_stays`).
    """
    return bool(torch._C._autograd._profiler_enabled()) and not _newer_is_enabled()


def older_profiler_stays() -> bool:
    """Whether torch's older profiler records on this thread and would not stop for another one.

    Found by starting it a second time, which a recorder notices, and which fails harmlessly if it belongs to other
    code. Otherwise the newer one would be prepared and not started, and torch 2.11 could never start one again.
    """
    modules = profiler_modules()
    if modules is None or not older_profiler_is_running():
        return False
    older = modules[1]
    try:
        older._enable_profiler_legacy(memory_profiler_config())
    except RuntimeError:
        return True
    older._disable_profiler_legacy()
    return False


def prepared_by_another(error: BaseException) -> bool:
    """Whether a profiler failed to start because another one was prepared and not started (torch 2.12 and before).

    That is the state of a profiler with a schedule during its warm-up, and of one whose start failed, until the process
    ends.
    """
    return isinstance(error, RuntimeError) and "disable Kineto profiler when it's not running" in str(error)


@needed_for(_READING)
def disable_profiler() -> None:
    """Stop the profiler of this thread, except the older one, and drop its recording.

    Also clears torch's own flag that one is running, which a failed start leaves behind.
    """
    if _newer_is_enabled():
        torch._C._autograd._disable_profiler()
    profiler = torch.autograd.profiler
    if getattr(profiler, "_is_profiler_enabled", False):
        profiler._run_on_profiler_stop()  # type: ignore[no-untyped-call]


def _newer_is_enabled() -> bool:
    autograd = torch._C._autograd
    legacy = getattr(getattr(torch._C._profiler, "ActiveProfilerType", None), "LEGACY", None)
    return bool(autograd._profiler_enabled()) and autograd._profiler_type() != legacy


def finished_results(profile: Any) -> Any:
    """What a stopped profiler recorded, or ``None`` while it runs or before it ran.

    Takes a ``torch.profiler.profile`` or the ``torch.autograd.profiler.profile`` inside it.
    """
    inner = getattr(profile, "profiler", profile)
    return getattr(inner, "kineto_results", None)


def event_tree(results: Any) -> Sequence[Any]:
    """The roots of the event tree, one or more per thread, each with its children in order of time."""
    roots: Sequence[Any] = results.experimental_event_tree()
    return roots


# By address: ctypes would add its own reference to an object.
_decref = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", ctypes.pythonapi))


@lru_cache(maxsize=1)
def profiler_keeps_callers() -> bool:
    """Whether the profiler leaks one reference for each recorded module call or optimizer step.

    torch 2.11 does on Python 3.13: recorded objects would never be freed. Found with a test recording, so no
    other profiler may be running.
    """
    kept = 0
    if sys.version_info >= (3, 13):
        module = torch.nn.Identity()
        before = sys.getrefcount(module)
        with new_profiler():
            module(None)
        kept = sys.getrefcount(module) - before
        if kept == 1:
            _decref(id(module))
    return kept == 1


def let_callers_go(roots: Sequence[Any]) -> None:
    """Release the references that the profiler leaked for the calls in an event tree; call it once for each tree."""
    if not profiler_keeps_callers():
        return
    python, pending, kept = event_types().python_call, [*roots], list[int]()
    while pending:
        event = pending.pop()
        pending += event.children
        fields = event.extra_fields
        kind = type(fields)
        if kind is python:
            kept += [caller.self_ptr for caller in (fields.module, fields.optimizer) if caller is not None]
    for address in kept:
        _decref(address)


def dtype_name(tensor: Any) -> str:
    """The dtype of a tensor as the profiler saw it: ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def strided_bytes(tensor: Any) -> int:
    """Bytes from a tensor's first to its last element, as the profiler saw sizes and strides; 0 unless strided.

    The offset is not recorded: bytes before the first element of a view are not counted.
    """
    if tensor.layout is not torch.strided:
        return 0
    extent = max((size * stride for size, stride in zip(tensor.sizes, tensor.strides, strict=True)), default=1)
    return int(extent) * int(tensor.dtype.itemsize)
