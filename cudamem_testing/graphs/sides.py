"""Which side a tensor stands on: the device, the host, or pinned host memory.

The lint runs on CPU tensors that stand for those of a device, so their device does not tell. A side is kept for each
storage: what the function is given and what it finds outside is the device's, what operators make follows their inputs,
what is made without a device or on ``cpu`` is the host's.

torch spells the CPU in two ways that it treats alike, ``cpu`` and ``cpu:0``. So tensors of the device say that they are
on ``cpu:0``: code that makes others with ``device=x.device`` says where it wants them, and code that asks for
``x.device.type`` is told what is true. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cudamem_testing.static import is_a, plain_text

STAND_IN = torch.device("cpu", 0)
HOST = torch.device("cpu")


class Side(Enum):
    """Where a storage stands."""

    DEVICE = "device"
    HOST = "host"
    PINNED = "pinned host memory"


class Sides:
    """Sides of storages. With ``real`` tensors of a card their device decides, and only who was met is remembered.

    ``devices`` are the ``id`` of ``torch.device`` objects that were noted before the run: where such a one says
    ``cpu``, it was read from a tensor that stands on the device.
    """

    def __init__(self, *, real: bool, devices: Collection[int] = ()) -> None:
        self.real = real
        self._devices = devices
        self._sides: dict[StorageWeakRef, Side] = {}

    def of(self, tensor: torch.Tensor) -> Side | None:
        """The side of a tensor; ``None`` where it is not known, or the tensor has no storage."""
        if self.real:
            if tensor.device.type == "cuda":
                return Side.DEVICE
            return Side.PINNED if tensor.is_pinned() else Side.HOST
        reference = storage_reference(tensor)
        return None if reference is None else self._sides.get(reference)

    def put(self, tensor: torch.Tensor, side: Side) -> None:
        """Say where a tensor's storage stands."""
        reference = storage_reference(tensor)
        if reference is not None:
            self._sides[reference] = side

    def met(self, tensor: torch.Tensor) -> bool:
        """Whether somebody has said where a tensor's storage stands."""
        return storage_reference(tensor) in self._sides

    def touched(self, reference: StorageWeakRef) -> bool:
        """The same of a storage that may be gone."""
        return reference in self._sides

    def place(self, tensor: torch.Tensor) -> torch.device:
        """The device that a tensor says it is on."""
        stands_in = not self.real and tensor.device == HOST and self.on_device(tensor)
        return STAND_IN if stands_in else tensor.device

    def on_device(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor stands on the device; one that nothing is known of does."""
        return self.of(tensor) in (Side.DEVICE, None)

    def wanted(self, device: object) -> Side | None:
        """The side that code asks for with ``device=``; ``None`` when it says nothing about one."""
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
