"""Finds the memory that a tensor keeps.

Many tensors share one storage, and some tensors have none: fake and meta tensors, sparse ones (their indices and
values have storages), wrapper subclasses (the tensors in their attributes have them). ``storages_of`` follows all of
them to the storages that hold real bytes. Nothing is kept alive: a ``Storage`` is three numbers and a device name.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from cudamem_testing import safe_access
from cudamem_testing.torch_api import tensors


class Storage(NamedTuple):
    """One storage of ``nbytes`` bytes. ``identity`` is unique among live ones, ``address`` is its data pointer."""

    identity: int
    address: int
    nbytes: int
    device: str

    def __str__(self) -> str:
        return f"{self.nbytes} bytes on {self.device}"


def is_tensor(obj: object) -> bool:
    """Whether an object is really a tensor (an object that fakes ``__class__`` is not)."""
    return safe_access.is_a(obj, tensors.TensorBase)


def is_module(obj: object) -> bool:
    """Whether an object is really an ``nn.Module``."""
    return safe_access.is_a(obj, torch.nn.Module)


def storage_of(obj: object) -> Storage | None:
    """The tensor's (or storage object's) own storage; ``None`` if it has none with real bytes."""
    with tensors.quiet():
        found = tensors.storage(obj)
    return None if found is None or found[1] == 0 else Storage(*found)


def storages_of(obj: object) -> tuple[Storage, ...]:
    """All storages that an object keeps: its own, or those of the tensors inside it, each once."""
    return tuple(storage for storage, _ in carried_by(obj))


def carried_by(obj: object) -> list[tuple[Storage, object]]:
    """The storages of ``storages_of``, each with the object that owns it: ``obj`` or a tensor inside it."""
    found: dict[int, tuple[Storage, object]] = {}
    waiting, seen = [obj], {id(obj)}
    keep = [obj]  # so that no id in ``seen`` is used again
    while waiting:
        tensor = waiting.pop(0)
        own = storage_of(tensor)
        if own is not None:
            found.setdefault(own.identity, (own, tensor))
        if not is_tensor(tensor):
            continue
        for inner in _inner(tensor, own is None):
            if id(inner) not in seen:
                seen.add(id(inner))
                keep.append(inner)
                waiting.append(inner)
    return [*found.values()]


def _inner(tensor: object, hollow: bool) -> list[object]:
    """Tensors inside a tensor; attributes count only if the tensor itself is hollow (a wrapper)."""
    with tensors.quiet():
        inner = [part for _, part in tensors.parts(tensor)]
    if hollow and not inner:
        inner = [value for _, value in safe_access.items(safe_access.instance_dict(tensor) or {}) if is_tensor(value)]
    return inner
