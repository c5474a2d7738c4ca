"""The profiler: recording, and the events that it hands out. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType


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


class EventTypes(NamedTuple):  # made at every start of a session, so no dataclass: that takes five times as long
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


def new_profiler() -> Any:
    """A profiler with every flag that the analysis needs, recording what the CPU issues; a context manager.

    Allocators of all devices report to it; recording kernels as well would only cost time. It is the one inside
    ``torch.profiler.profile``, which itself is a reference cycle and, until that is collected, holds what it recorded.
    """
    from torch.autograd.profiler import profile

    return profile(use_kineto=True, record_shapes=True, profile_memory=True, with_stack=True)


def profiler_is_running() -> bool:
    """Whether a profiler records in this process: on this thread, or started by another one.

    torch's older profiler is not meant (:func:`older_profiler_is_running`).
    """
    from torch.autograd import profiler

    return _newer_is_enabled() or bool(getattr(profiler, "_is_profiler_enabled", False))


def older_profiler_is_running() -> bool:
    """Whether ``torch.autograd.profiler_legacy`` records on this thread.

    It may be a recorder's, which gives way when another profiler starts (:func:`older_profiler_stays`).
    """
    import torch

    return bool(torch._C._autograd._profiler_enabled()) and not _newer_is_enabled()


def older_profiler_stays() -> bool:
    """Whether torch's older profiler records on this thread and would not give way to another one.

    Found out by starting it a second time, which a recorder notices, and which fails without harm where it is anybody
    else's. The newer one would be prepared by then and not started, and torch 2.11 could start none ever after.
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
    """Whether a profiler could not start because another one was prepared and not started (torch 2.12 and before).

    One with a schedule is, as long as it warms up; and so is one whose start failed half way, until the process ends.
    """
    return isinstance(error, RuntimeError) and "disable Kineto profiler when it's not running" in str(error)


def disable_profiler() -> None:
    """Stop whatever profiler records on this thread, the older one apart, and drop what it has.

    torch's own note that one runs goes too: one that could not start leaves it behind.
    """
    import torch
    from torch.autograd import profiler

    if _newer_is_enabled():
        torch._C._autograd._disable_profiler()
    if getattr(profiler, "_is_profiler_enabled", False):
        profiler._run_on_profiler_stop()  # type: ignore[no-untyped-call]


def _newer_is_enabled() -> bool:
    import torch

    autograd = torch._C._autograd
    legacy = getattr(torch._C._profiler.ActiveProfilerType, "LEGACY", None)
    return bool(autograd._profiler_enabled()) and autograd._profiler_type() != legacy


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


# By address: ctypes would take a reference of its own to an object.
_decref = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", ctypes.pythonapi))


@lru_cache(maxsize=1)
def profiler_keeps_callers() -> bool:
    """Whether the profiler takes one reference too many for each recorded call of a module or step of an optimizer.

    That of torch 2.11 does on Python 3.13: what was recorded would never die. It is found out with a recording, so no
    other profiler may run.
    """
    kept = 0
    if sys.version_info >= (3, 13):
        import torch

        module = torch.nn.Identity()
        before = sys.getrefcount(module)
        with new_profiler():
            module(None)
        kept = sys.getrefcount(module) - before
        if kept == 1:
            _decref(id(module))
    return kept == 1


def let_callers_go(roots: Sequence[Any]) -> None:
    """Give back the references that the profiler took for the calls in an event tree; once for each tree."""
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
    """The type of a tensor's elements as the profiler saw it: ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def strided_bytes(tensor: Any) -> int:
    """Bytes from a tensor's first to its last element, as the profiler saw sizes and strides; 0 unless strided.

    The offset is not recorded: what lies before the first element of a view is not counted.
    """
    import torch

    if tensor.layout is not torch.strided:
        return 0
    extent = max((size * stride for size, stride in zip(tensor.sizes, tensor.strides, strict=True)), default=1)
    return int(extent) * int(tensor.dtype.itemsize)
