"""Embeddings in bags, and gradients of embeddings. Recorded on an H200 with torch 2.11. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cudamem_testing.model.simulated_cards import CardModel
from cudamem_testing.simulated.kernels.memory import Memory, empty
from cudamem_testing.torch_api.operators import embedding_bag_backward_of_cpu, embedding_bag_of_cpu

Tensor = torch.Tensor
OFTEN = 20  # as often must each row occur for another kernel: recorded for 61 times and more, not for 8
MAX = 2  # the mode of bags that keeps the largest


def kernels(memory: Memory, card: CardModel) -> dict[str, Callable[..., Any]]:
    """By the operator's name."""
    host = memory.host

    def gradient(grad: Tensor, indices: Tensor, number: int, by_order: bool, sums: int, more: int = 0) -> Tensor:
        """The gradient of all rows, without values; indices are sorted first, or not.

        Each part of the work takes a sum of so many bytes; ``more`` is what else is taken, in bytes.
        """
        count = indices.numel()
        held = [_copy(one) for one in (grad, indices) if not one.is_contiguous()]
        numbers, present = 8 * count, 8 * min(count, number)
        if by_order:
            memory.passing(indices, numbers, numbers, numbers, memory.radix_sort(count, 8, 8))
        out = empty(grad, (number, grad.shape[-1]))
        if by_order:
            parts = count // 10 + min(count, number)
            memory.passing(indices, *(numbers,) * 3, 8, present, present, 8, 8 * parts, sums * parts, more)
        del held
        return out

    def embedding_dense_backward(
        grad: Tensor, indices: Tensor, number: int, padding: int, scale_by_frequency: bool
    ) -> Tensor:
        count, width = indices.numel(), grad.shape[-1]
        often = count > OFTEN * number
        full = 4 * number * width if often and grad.element_size() < 4 else 0  # summed up in full precision
        more = full + (8 * count if scale_by_frequency else 0)
        out = gradient(grad, indices, number, True, 8 if often else 4 * width, more)
        if memory.values:
            rest = (number, padding, scale_by_frequency)
            memory.fill(out, torch.ops.aten.embedding_dense_backward(host(grad), host(indices), *rest))
        return out

    def embedding_bag(
        weight: Tensor,
        indices: Tensor,
        offsets: Tensor,
        scale_by_frequency: bool = False,
        mode: int = 0,
        sparse: bool = False,
        weights: Tensor | None = None,
        last_offset: bool = False,
        padding: int = -1,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        bags, width = offsets.shape[0] - last_offset, weight.shape[1]
        sizes = empty(indices, offsets.shape)
        bag_of = empty(indices, indices.shape)
        out = empty(weight, (bags, width))
        most = empty(indices, (bags, width) if mode == MAX else (0,))
        if memory.values:
            given = host(weight), host(indices), host(offsets), scale_by_frequency, mode, sparse
            of_each = None if weights is None else host(weights)
            found = embedding_bag_of_cpu(*given, of_each, last_offset, padding)
            memory.fill(out, found[0])
            steps = torch.arange(indices.numel())
            memory.fill(bag_of, torch.bucketize(steps, host(offsets)[:bags].long(), right=True) - 1)
            for into, one in ((sizes[:bags], found[2]), (most, found[3])):
                if one.numel() >= into.numel():
                    memory.fill(into, one[: into.shape[0]])
                elif into is not most:
                    memory.fill(into, torch.bincount(host(bag_of).long(), minlength=bags))
        return out, bag_of, sizes, most

    def embedding_bag_backward(
        grad: Tensor,
        indices: Tensor,
        bag_of: Tensor,
        sizes: Tensor,
        most: Tensor,
        number: int,
        scale_by_frequency: bool,
        mode: int,
        weights: Tensor | None,
        padding: int = -1,
    ) -> Tensor:
        if mode == MAX:
            held = None if grad.is_contiguous() else _copy(grad)
            out = empty(grad, (number, grad.shape[1]))
            del held
        else:
            out = gradient(grad, indices, number, indices.numel() > 0, 4 * grad.shape[1])
        if memory.values:
            given = [host(one) for one in (grad, indices, bag_of, sizes[: grad.shape[0]], most)]
            of_each = None if weights is None else host(weights)
            rest = (number, scale_by_frequency, mode, of_each, padding)
            memory.fill(out, embedding_bag_backward_of_cpu(given[0].contiguous(), *given[1:], *rest))
        return out

    def embedding_bag_any_backward(
        grad: Tensor, indices: Tensor, offsets: Tensor, bag_of: Tensor, sizes: Tensor, most: Tensor, *rest: Any
    ) -> Tensor:
        number, scale_by_frequency, mode, sparse, *more = rest
        if sparse:
            raise NotImplementedError("a simulated card has no sparse tensors: run this on a real card")
        return embedding_bag_backward(grad, indices, bag_of, sizes, most, number, scale_by_frequency, mode, *more)

    return {
        "cudamem_card::embedding_backward_by_order": embedding_dense_backward,
        "_embedding_bag_backward": embedding_bag_any_backward,
        "_embedding_bag": embedding_bag,
        "_embedding_bag_forward_only": embedding_bag,
        "_embedding_bag_dense_backward": embedding_bag_backward,
    }


def _copy(tensor: Tensor) -> Tensor:
    """Memory for a copy of a tensor that is not contiguous."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
