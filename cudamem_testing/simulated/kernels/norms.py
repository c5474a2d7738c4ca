"""Norms. Recorded on an H200 with torch 2.11. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cudamem_testing.model.simulated_cards import CardModel
from cudamem_testing.simulated.kernels.memory import Memory, empty

Tensor = torch.Tensor


def kernels(memory: Memory, card: CardModel) -> dict[str, Callable[..., Any]]:
    """By the operator's name."""
    host, fill = memory.host, memory.fill

    def fused_rms_norm(x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        lead = x.shape[: x.dim() - len(shape)]
        scale = empty(x, (*lead, *(1 for _ in shape)), torch.float32)
        if memory.values:
            dims = tuple(range(-len(shape), 0))
            least = torch.finfo(x.dtype).eps if eps is None else eps
            full = host(x).float()
            found = full.square().mean(dims, keepdim=True).add_(least).rsqrt_()
            fill(scale, found)
            scaled = full * found
            fill(out, scaled if weight is None else scaled * host(weight))
        return out, scale

    def fused_rms_norm_backward(
        grad: Tensor, x: Tensor, shape: list[int], scale: Tensor, weight: Tensor | None, wanted: list[bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        held = None if grad.is_contiguous() else torch.empty_like(x)
        into = torch.empty_like(x, memory_format=torch.contiguous_format) if wanted[0] else None
        into_weight = torch.empty_like(weight) if wanted[1] and weight is not None else None
        del held
        if memory.values:
            dims = tuple(range(-len(shape), 0))
            g, full, r = host(grad).float(), host(x).float(), host(scale)
            weighted = g if weight is None else g * host(weight).float()
            normed = full * r
            if into is not None:
                fill(into, r * (weighted - normed * (weighted * normed).mean(dims, keepdim=True)))
            if into_weight is not None:
                fill(into_weight, (g * normed).flatten(0, -1 - len(shape)).sum(0))
        return into, into_weight

    def native_group_norm(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, pixels: int, groups: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        out = torch.empty_like(x)
        mean, scale = (empty(x, (n, groups)) for _ in range(2))
        memory.passing(x, 4 * n * c, 4 * n * c)
        if memory.values:
            given = [None if one is None else host(one) for one in (weight, bias)]
            found = torch.ops.aten.native_group_norm(host(x), *given, n, c, pixels, groups, eps)
            for into, one in zip((out, mean, scale), found, strict=True):
                fill(into, one)
        return out, mean, scale

    def native_group_norm_backward(
        grad: Tensor,
        x: Tensor,
        mean: Tensor,
        scale: Tensor,
        weight: Tensor | None,
        n: int,
        c: int,
        pixels: int,
        groups: int,
        wanted: list[bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        near = x if weight is None else weight
        into_x = torch.empty_like(x) if wanted[0] else None
        into_weight, into_bias = (empty(near, (c,)) if one else None for one in wanted[1:])
        memory.passing(x, 4 * n * c, 4 * n * c, 4 * n * groups, 4 * n * groups, 4 * n * c)
        if memory.values:
            given = (host(mean), host(scale), None if weight is None else host(weight))
            rest = (n, c, pixels, groups, wanted)
            found = torch.ops.aten.native_group_norm_backward(host(grad).contiguous(), host(x), *given, *rest)
            for into, one in zip((into_x, into_weight, into_bias), found, strict=True):
                if into is not None:
                    fill(into, one)
        return into_x, into_weight, into_bias

    return {
        "native_group_norm": native_group_norm,
        "native_group_norm_backward": native_group_norm_backward,
        "_fused_rms_norm": fused_rms_norm,
        "_fused_rms_norm_backward": fused_rms_norm_backward,
    }
