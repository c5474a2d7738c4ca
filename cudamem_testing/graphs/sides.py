"""Which side a tensor is on: the device, the host, or pinned host memory.

The lint runs on CPU tensors in place of device tensors, so their device does not tell. A side is kept for each
storage: arguments and outside tensors are on the device, outputs of operators follow their inputs,
tensors created without a device or on ``cpu`` are on the host.

torch has two equivalent names for the CPU, ``cpu`` and ``cpu:0``. So device tensors report that they are
on ``cpu:0``: code that creates others with ``device=x.device`` shows where it wants them, and code that reads
``x.device.type`` gets the true answer. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cudamem_testing.safe_access import is_a, plain_text

STAND_IN = torch.device("cpu", 0)
HOST = torch.device("cpu")


class Side(Enum):
    """Where a storage is."""

    DEVICE = "device"
    HOST = "host"
    PINNED = "pinned host memory"


class Sides:
    """Sides of storages. With ``real`` CUDA tensors their device decides; only seen storages are recorded.

    ``devices`` are the ``id`` of ``torch.device`` objects that existed before the run: if such an object says
    ``cpu``, it was read from a tensor that is on the device.
    """

    def __init__(self, *, real: bool, devices: Collection[int] = ()) -> None:
        self.real = real
        self._devices = devices
        self._sides: dict[StorageWeakRef, Side] = {}

    def of(self, tensor: torch.Tensor) -> Side | None:
        """The side of a tensor; ``None`` if it is unknown, or the tensor has no storage."""
        if self.real:
            if tensor.device.type == "cuda":
                return Side.DEVICE
            return Side.PINNED if tensor.is_pinned() else Side.HOST
        reference = storage_reference(tensor)
        return None if reference is None else self._sides.get(reference)

    def put(self, tensor: torch.Tensor, side: Side) -> None:
        """Set the side of a tensor's storage."""
        reference = storage_reference(tensor)
        if reference is not None:
            self._sides[reference] = side

    def met(self, tensor: torch.Tensor) -> bool:
        """Whether the side of a tensor's storage was set."""
        return storage_reference(tensor) in self._sides

    def touched(self, reference: StorageWeakRef) -> bool:
        """The same for a storage that may have been freed."""
        return reference in self._sides

    def place(self, tensor: torch.Tensor) -> torch.device:
        """The device that a tensor reports."""
        stands_in = not self.real and tensor.device == HOST and self.on_device(tensor)
        return STAND_IN if stands_in else tensor.device

    def on_device(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device; true if unknown."""
        return self.of(tensor) in (Side.DEVICE, None)

    def wanted(self, device: object) -> Side | None:
        """The side that code requests with ``device=``; ``None`` if it requests none."""
        if type(device) is int:
            return Side.DEVICE
        kind = plain_text(device) if is_a(device, str) else str(device) if type(device) is torch.device else ""
        if kind.startswith("cuda") or kind == str(STAND_IN) or id(device) in self._devices:
            return Side.DEVICE
        return Side.HOST if kind == "cpu" else None


def storage_reference(tensor: torch.Tensor) -> StorageWeakRef | None:
    """A weak reference to the storage of a tensor, equal for all views of it; ``None`` without one."""
    try:
        return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    except (RuntimeError, NotImplementedError):  # sparse, functorch's and other wrappers
        return None
