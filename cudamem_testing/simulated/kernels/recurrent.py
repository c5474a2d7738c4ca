"""Recurrent layers by cuDNN that are computed in single steps on the CPU, and the sizes of what cuDNN allocates.

The operators are in ``card_layers.h``. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cudamem_testing.model.simulated_cards import CardModel
from cudamem_testing.simulated.kernels.layers import SEED, Layers
from cudamem_testing.simulated.kernels.memory import Memory, empty
from cudamem_testing.simulated.kernels.steps import Pass

Tensor = torch.Tensor


def kernels(memory: Memory, card: CardModel) -> dict[str, Callable[..., Any]]:
    """By the operator's name."""

    def flatten(weights: Sequence[Tensor], *rest: Any) -> Tensor:
        buffer = empty(weights[0], (sum(one.numel() for one in weights),))
        at = 0
        for one in weights:
            view = buffer[at : at + one.numel()].view(one.shape)
            view.copy_(one)
            one.set_(view)  # type: ignore[call-overload]
            at += one.numel()
        return buffer

    def sizes(x: Tensor, weights: Sequence[Tensor], *how: Any) -> list[int]:
        layers = Layers(*how)
        return [layers.workspace(x, weights, True), layers.workspace(x, weights, False), layers.reserve(x)]

    def on_host(*tensors: Tensor | None) -> list[Tensor | None]:
        """All in one call; none where there is none."""
        shown = iter(memory.hosts([one for one in tensors if one is not None]))
        return [None if one is None else next(shown) for one in tensors]

    def passing(layers: Layers, x: Tensor, weights: Sequence[Tensor], stride: int, reserve: Tensor) -> Pass:
        """On the host."""
        given, room, *parameters = memory.hosts([x, reserve, *weights])
        size = x.element_size()
        whole = (room.shape[0] - SEED) // size * size
        rest = room[SEED : SEED + whole].view(x.dtype) if whole > 0 else None
        seed = int(room[:8].view(torch.int64)) if layers.dropout and room.shape[0] else 0
        return Pass(layers, layers.rows(given), layers.sizes(x), parameters, stride, rest, seed)

    def forward(
        x: Tensor,
        weights: Sequence[Tensor],
        stride: int,
        hx: Tensor,
        cx: Tensor | None,
        out: Tensor,
        last: Tensor,
        cell: Tensor,
        reserve: Tensor,
        *how: Any,
    ) -> None:
        layers = Layers(*how)
        one = passing(layers, x, weights, stride, reserve)
        first, results, ends, *cells = memory.hosts([hx, out, last, *([] if cx is None else [cx, cell])])
        one.forward(first, layers.rows(results), ends, *cells)

    def backward(
        x: Tensor,
        weights: Sequence[Tensor],
        stride: int,
        hx: Tensor,
        cx: Tensor | None,
        out: Tensor,
        grad: Tensor | None,
        grad_last: Tensor | None,
        grad_cell: Tensor | None,
        reserve: Tensor,
        into_x: Tensor,
        into_hx: Tensor,
        into_cx: Tensor | None,
        flat: Tensor,
        *how: Any,
    ) -> None:
        layers = Layers(*how)
        one = passing(layers, x, weights, stride, reserve)
        above, ends, cells = on_host(grad, grad_last, grad_cell)
        first, results, *before = memory.hosts([hx, out, *([] if cx is None else [cx])])
        grads = None if above is None else layers.rows(above), ends, cells
        of_x, of_hx, of_cx, of_weights = one.backward(first, layers.rows(results), *grads, *before)
        whole, *into = memory.hosts([flat, into_x, into_hx, *([] if into_cx is None else [into_cx])])
        values = [of_x.view(into_x.shape), of_hx, *([] if of_cx is None else [of_cx])]
        torch.cat([each.reshape(-1) for each in of_weights], out=whole)
        for place, value in zip(into, values, strict=True):
            place.copy_(value)

    return {
        "_cudnn_rnn_flatten_weight": flatten,
        "cudamem_card::recurrent_sizes": sizes,
        "cudamem_card::recurrent_steps": forward,
        "cudamem_card::recurrent_steps_backward": backward,
    }
