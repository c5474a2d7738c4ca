"""Accelerators other than CUDA, as ``torch.accelerator`` knows them: XPU, and others that answer its statistics.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import NamedTuple

from cudamem_testing.torch_api.process import bindings, torch

ACCELERATOR_READER = "_accelerator_getDeviceStats"
ACCELERATOR_PEAK_RESET = "_accelerator_resetPeakStats"
ACCELERATOR_STARTED = "_accelerator_isAllocatorInitialized"


class Accelerator(NamedTuple):
    """The kind of device that this torch calls its accelerator, and how many are visible."""

    kind: str
    devices: int


def other_accelerator() -> Accelerator | None:
    """The accelerator of this machine, unless it is CUDA; ``None`` if it has no statistics of memory."""
    functions = (ACCELERATOR_READER, ACCELERATOR_PEAK_RESET, ACCELERATOR_STARTED)
    if not hasattr(torch, "accelerator") or any(not hasattr(bindings(), name) for name in functions):
        return None
    found = torch.accelerator.current_accelerator()
    if found is None or found.type == "cuda" or not torch.accelerator.is_available():
        return None
    try:
        accelerator_started()
    except RuntimeError:  # torch has no allocator for this kind of device, as for MPS
        return None
    return Accelerator(found.type, torch.accelerator.device_count())


def accelerator_started() -> bool:
    """Whether its allocator has been used in this process."""
    return bool(getattr(bindings(), ACCELERATOR_STARTED)())


def accelerator_name(kind: str, index: int) -> str:
    """The name of a device; its kind where its module of torch does not say."""
    try:
        return str(torch.get_device_module(kind).get_device_name(index))
    except (AttributeError, RuntimeError, AssertionError):
        return kind


def synchronize_accelerator(index: int) -> None:
    """Wait until a device has finished."""
    torch.accelerator.synchronize(index)
