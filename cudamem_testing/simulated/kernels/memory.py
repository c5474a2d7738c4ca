"""What kernels of a simulated card do with memory. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch

from cudamem_testing.simulated.native import NativeCard

KIB, MIB = 2**10, 2**20


class Memory:
    """Allocates on the card of a tensor, and shows its memory to the CPU where there are values."""

    def __init__(self, native: NativeCard) -> None:
        self._native = native

    @property
    def values(self) -> bool:
        """Whether tensors on the card have values now."""
        return bool(self._native.values())

    def passing(self, near: torch.Tensor, *sizes: int) -> None:
        """Take memory as a kernel does for as long as it runs, all at once; sizes in bytes, 0 for none."""
        numbers = array("q", sizes).tobytes()
        if self._native.__getattr__("pass")(near.device.index, numbers, len(sizes)) < 0:
            raise torch.OutOfMemoryError(self._native.error())

    def radix_sort(self, count: int, key: int, value: int) -> int:
        """Bytes of temporary memory of a radix sort; ``key`` and ``value`` in bytes (``card_sorting.h``)."""
        return int(self._native.radix_sort(count, key, value))

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the CPU over the same memory; to be used at once."""
        if tensor.device.type != "cuda":
            return tensor
        shown: torch.Tensor = torch.ops.cudamem_card.on_host(tensor)
        return shown

    def hosts(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """As ``host`` for each of them, in one call."""
        shown: list[torch.Tensor] = torch.ops.cudamem_card.all_on_host(tensors)
        return shown

    def fill(self, tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Give a tensor of the card the values of one of the CPU."""
        self.host(tensor).copy_(value)
        return tensor


def empty(near: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor on the same card."""
    return torch.empty(shape, dtype=near.dtype if dtype is None else dtype, device=near.device)


def bytes_of(tensor: torch.Tensor) -> int:
    """Of its elements."""
    return tensor.numel() * tensor.element_size()


def like_order(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A dense tensor of another shape whose dimensions have the same order in memory."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim))
    made = torch.empty([shape[dim] for dim in order], dtype=tensor.dtype, device=tensor.device)
    back = [order.index(dim) for dim in range(tensor.dim())]
    return made.permute(back)


def rounded(value: int, step: int) -> int:
    """To the next multiple."""
    return -(-value // step) * step
