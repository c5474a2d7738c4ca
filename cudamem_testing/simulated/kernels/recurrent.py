"""Recurrent layers by cuDNN: weights in one buffer, a reserve for backward, and workspaces. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cudamem_testing.model.simulated_cards import CardModel
from cudamem_testing.simulated.kernels.layers import SEED, Layers
from cudamem_testing.simulated.kernels.memory import Memory, empty
from cudamem_testing.simulated.kernels.steps import Pass

Tensor = torch.Tensor
#: What a library keeps for backward lives as long as the memory of the reserve: an attribute of its storage.
BESIDE = "kept_by_onednn"


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

    def on_host(*tensors: Tensor | None) -> list[Tensor | None]:
        """All in one call; none where there is none."""
        shown = iter(memory.hosts([one for one in tensors if one is not None]))
        return [None if one is None else next(shown) for one in tensors]

    def passing(
        layers: Layers, x: Tensor, weights: Sequence[Tensor], stride: int, reserve: Tensor, seed: int | None, kept: Any
    ) -> Pass:
        """On the host; a new seed stays in the reserve until backward."""
        given, room, *parameters = memory.hosts([x, reserve, *weights])
        if layers.dropout and room.shape[0]:
            place = room[:8].view(torch.int64)
            if seed is not None:
                place.fill_(seed)
            seed = int(place)
        size = x.element_size()
        whole = (room.shape[0] - SEED) // size * size
        rest = room[SEED : SEED + whole].view(x.dtype) if whole > 0 else None
        return Pass(layers, layers.rows(given), layers.sizes(x), parameters, stride, rest, seed or 0, kept)

    def forward(
        x: Tensor,
        weights: Sequence[Tensor],
        stride: int,
        buffer: Tensor | None,
        hx: Tensor,
        cx: Tensor | None,
        *how: Any,
    ) -> tuple[Tensor, ...]:
        layers = Layers(*how[:9])
        whole = sum(one.numel() for one in weights) * x.element_size()
        if buffer is None and weights[0].untyped_storage().nbytes() == whole:
            buffer = weights[0].detach()  # they lie in one buffer already
        if buffer is None:
            buffer = empty(x, (sum(one.numel() for one in weights),))
        held = torch.empty(x.shape, dtype=x.dtype, device=x.device) if layers.batch_first else None
        out = empty(x, layers.shape(x))
        last = torch.empty_like(hx)
        cell = torch.empty_like(cx) if cx is not None else empty(x, (0,))
        workspace = empty(x, (layers.workspace(x, weights, True),), torch.uint8)
        kept = layers.reserve(x)
        reserve = empty(x, (kept,), torch.uint8)
        del workspace, held
        if layers.batch_first:
            out = out.transpose(0, 1)
        if memory.values:
            seed = int(torch.randint(2**62, (), device=x.device).item()) if layers.dropout and kept else None
            beside: dict[int, Any] | None = {} if layers.train and torch.is_grad_enabled() else None
            one = passing(layers, x, weights, stride, reserve, seed, beside)
            first, results, ends, *cells = memory.hosts([hx, out, last, *([] if cx is None else [cx, cell])])
            one.forward(first, layers.rows(results), ends, *cells)
            if beside:
                vars(reserve.untyped_storage())[BESIDE] = beside
        return out, last, cell, reserve, buffer

    def backward(
        x: Tensor,
        weights: Sequence[Tensor],
        stride: int,
        buffer: Tensor,
        hx: Tensor,
        cx: Tensor | None,
        out: Tensor,
        grad: Tensor | None,
        grad_last: Tensor | None,
        grad_cell: Tensor | None,
        *how: Any,
    ) -> tuple[Any, ...]:
        layers, reserve = Layers(*how[:9]), how[10]
        zeros = [torch.empty_like(hx) for one in (grad_last, grad_cell if cx is not None else hx) if one is None]
        held = [torch.empty_like(x), torch.empty_like(out)] if layers.batch_first else []
        steps_first = empty(x, (x.transpose(0, 1) if layers.batch_first else x).shape)
        into_x, into_hx = steps_first.transpose(0, 1) if layers.batch_first else steps_first, torch.empty_like(hx)
        into_cx = None if cx is None else torch.empty_like(cx)
        workspace = layers.workspace(x, weights, False)
        memory.passing(x, workspace)
        while held:
            held.pop()
        again = torch.empty_like(x) if layers.batch_first else None
        flat = empty(x, (sum(one.numel() for one in weights),))
        parts = flat.split_with_sizes([one.numel() for one in weights])
        into_weights = [part.view(one.shape) for part, one in zip(parts, weights, strict=True)]
        memory.passing(x, workspace)
        del again, zeros
        if memory.values:
            beside = vars(reserve.untyped_storage()).get(BESIDE)
            one = passing(layers, x, weights, stride, reserve, None, beside)
            above, ends, cells = on_host(grad, grad_last, grad_cell)
            first, results, *before = memory.hosts([hx, out, *([] if cx is None else [cx])])
            grads = None if above is None else layers.rows(above), ends, cells
            of_x, of_hx, of_cx, of_weights = one.backward(first, layers.rows(results), *grads, *before)
            whole, *into = memory.hosts([flat, steps_first, into_hx, *([] if into_cx is None else [into_cx])])
            values = [of_x.view(steps_first.shape), of_hx, *([] if of_cx is None else [of_cx])]
            torch.cat([each.reshape(-1) for each in of_weights], out=whole)
            for place, value in zip(into, values, strict=True):
                place.copy_(value)
        return into_x, into_hx, into_cx, into_weights

    return {"_cudnn_rnn": forward, "_cudnn_rnn_backward": backward, "_cudnn_rnn_flatten_weight": flatten}
