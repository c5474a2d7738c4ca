"""The private torch calls of this package: whether the memory of a storage is still there, and its shape in words.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Any

import torch

from cudamem_testing.objects import is_tensor, name_of


class StoredMemory:
    """Tells whether a storage still lives, without keeping its bytes; a Python weak reference would not see C++."""

    __slots__ = ("_weak",)

    def __init__(self, carrier: Any) -> None:
        """``carrier`` is a storage, or a tensor that has one."""
        with torch._C.DisableTorchFunction():
            storage = torch._C.TensorBase.untyped_storage(carrier) if is_tensor(carrier) else carrier
            self._weak: Any = torch.UntypedStorage._weak_ref(storage)

    @property
    def gone(self) -> bool:
        """Whether it was freed."""
        return bool(torch.UntypedStorage._expired(self._weak))

    def __del__(self) -> None:
        torch.UntypedStorage._free_weak_ref(self._weak)  # type: ignore[no-untyped-call]


def shape_of(tensor: object) -> str:
    """``float32[1024, 1024]``: a tensor in words, without its device and without the class of parameters."""
    head, _, tail = name_of(tensor).partition(" on ")
    view = f", {tail.partition(', ')[2]}" if ", view of" in tail else ""
    return head.removeprefix("Parameter ") + view
