"""Gradients of embeddings. Recorded on an H200 with torch 2.11. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cudamem_testing.model.simulated_cards import CardModel
from cudamem_testing.simulated.kernels.memory import Memory, empty

Tensor = torch.Tensor
FEW = 3072  # more indices are sorted first


def kernels(memory: Memory, card: CardModel) -> dict[str, Callable[..., Any]]:
    """By the operator's name."""

    def embedding_dense_backward(
        grad: Tensor, indices: Tensor, number: int, padding: int, scale_by_frequency: bool
    ) -> Tensor:
        width, count = grad.shape[-1], indices.numel()
        held = None if grad.is_contiguous() else torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
        by_order = count > FEW or scale_by_frequency
        numbers, present = 8 * count, 8 * min(count, number)
        if by_order:
            memory.passing(indices, numbers, numbers, numbers, memory.radix_sort(count, 8, 8))
        out = empty(grad, (number, width))
        if by_order:
            parts = count // 10 + min(count, number)
            sizes = numbers, numbers, numbers, 8, present, present, 8, 8 * parts, 4 * parts * width
            memory.passing(indices, *sizes)
        del held
        if memory.values:
            host = memory.host
            rest = (number, padding, scale_by_frequency)
            memory.fill(out, torch.ops.aten.embedding_dense_backward(host(grad), host(indices), *rest))
        return out

    return {"embedding_dense_backward": embedding_dense_backward}
