"""Operators that torch has for CUDA alone: fused steps of recurrent cells, cuDNN's grids, the choice of CTC's kernel.

What they allocate follows from their results: none takes a workspace. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cudamem_testing.model.simulated_cards import CardModel
from cudamem_testing.simulated.kernels.memory import Memory, bytes_of, empty
from cudamem_testing.torch_api import cuda_build

Tensor = torch.Tensor
CONTIGUOUS = torch.contiguous_format


def kernels(memory: Memory, card: CardModel) -> dict[str, Callable[..., Any]]:
    """By the operator's name."""
    host, fill = memory.host, memory.fill

    def gates(parts: tuple[Tensor, Tensor], biases: tuple[Tensor | None, Tensor | None]) -> list[Tensor]:
        shown = [host(part).float() for part in parts]
        return [part if bias is None else part + host(bias).float() for part, bias in zip(shown, biases, strict=True)]

    def lstm_cell(
        of_input: Tensor, of_state: Tensor, cx: Tensor, bias: Tensor | None = None, bias_of_state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        kept = torch.empty_like(of_input, memory_format=CONTIGUOUS)
        hy, cy = (torch.empty_like(cx, memory_format=CONTIGUOUS) for _ in range(2))
        if memory.values:
            i, f, g, o = sum(gates((of_input, of_state), (bias, bias_of_state))).chunk(4, 1)  # type: ignore[union-attr]
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            cell = f * host(cx).float() + i * g
            for into, value in ((kept, torch.cat([i, f, g, o], 1)), (hy, o * cell.tanh()), (cy, cell)):
                fill(into, value)
        return hy, cy, kept

    def lstm_cell_backward(
        grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, kept: Tensor, biased: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if grad_hy is None and grad_cy is None:
            return None, None, None
        grad_gates = torch.empty_like(kept, memory_format=CONTIGUOUS)
        grad_cx = torch.empty_like(cx, memory_format=CONTIGUOUS)
        if memory.values:
            i, f, g, o = host(kept).float().chunk(4, 1)
            bent = host(cy).float().tanh()
            above, beside = (0.0 if one is None else host(one).float() for one in (grad_hy, grad_cy))
            of_cell = above * o * (1 - bent * bent) + beside
            parts = of_cell * g * i * (1 - i), of_cell * host(cx).float() * f * (1 - f)
            fill(grad_gates, torch.cat([*parts, of_cell * i * (1 - g * g), above * bent * o * (1 - o)], 1))
            fill(grad_cx, of_cell * f)
        return grad_gates, grad_cx, grad_gates.sum(0) if biased else None

    def gru_cell(
        of_input: Tensor, of_state: Tensor, hx: Tensor, bias: Tensor | None = None, bias_of_state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        kept = empty(hx, (hx.shape[0], 5 * hx.shape[1]))
        hy = torch.empty_like(hx, memory_format=CONTIGUOUS)
        if memory.values:
            ours, theirs = gates((of_input, of_state), (bias, bias_of_state))
            (r, z, n), (hr, hz, hn) = ours.chunk(3, 1), theirs.chunk(3, 1)
            r, z, state = (r + hr).sigmoid(), (z + hz).sigmoid(), host(hx).float()
            n = (n + r * hn).tanh()
            fill(hy, n + z * (state - n))
            fill(kept, torch.cat([r, z, n, state, hn], 1))
        return hy, kept

    def gru_cell_backward(grad: Tensor, kept: Tensor, biased: bool) -> tuple[Tensor | None, ...]:
        batch, width = kept.shape[0], kept.shape[1] // 5
        of_input, of_state = (empty(kept, (batch, 3 * width)) for _ in range(2))
        grad_hx = torch.empty_like(grad, memory_format=CONTIGUOUS)
        if memory.values:
            r, z, n, state, hn = host(kept).float().chunk(5, 1)
            above = host(grad).float()
            of_n = above * (1 - z) * (1 - n * n)
            of_r, of_z = of_n * hn * (1 - r) * r, above * (state - n) * (1 - z) * z
            fill(of_input, torch.cat([of_r, of_z, of_n], 1))
            fill(of_state, torch.cat([of_r, of_z, of_n * r], 1))
            fill(grad_hx, above * z)
        biases = (of_input.sum(0), of_state.sum(0)) if biased else (None, None)
        return of_input, of_state, grad_hx, *biases

    def sample(x: Tensor, grid: Tensor) -> Tensor:
        out = empty(x, (*x.shape[:2], *grid.shape[1:3]))
        if memory.values:
            fill(out, torch.ops.aten.grid_sampler_2d(host(x), host(grid), 0, 0, True))
        return out

    def sample_backward(x: Tensor, grid: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.empty_like(x, memory_format=CONTIGUOUS), torch.empty_like(grid, memory_format=CONTIGUOUS)
        if memory.values:
            given = host(grad), host(x), host(grid)
            values = torch.ops.aten.grid_sampler_2d_backward(*given, 0, 0, True, [True, True])
            for into, value in zip(found, values, strict=True):
                fill(into, value)
        return found

    def no_library(*arguments: Any) -> bool:
        return False

    def ctc_loss_backward(
        grad: Tensor,
        scores: Tensor,
        targets: Tensor,
        lengths: list[int],
        sizes: list[int],
        loss: Tensor,
        *rest: Any,
    ) -> Tensor:
        memory.passing(scores, bytes_of(rest[0]))
        found = torch.empty_like(scores, memory_format=CONTIGUOUS)
        if memory.values:
            given = [host(one) for one in (grad, scores, targets)]
            more = host(loss), host(rest[0]), *rest[1:]
            fill(found, cuda_build.ctc_loss_backward(*given, lengths, sizes, *more))
        return found

    return {
        "_thnn_fused_lstm_cell": lstm_cell,
        "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
        "_thnn_fused_gru_cell": gru_cell,
        "_thnn_fused_gru_cell_backward": gru_cell_backward,
        "cudnn_grid_sampler": sample,
        "cudnn_grid_sampler_backward": sample_backward,
        "_use_cudnn_ctc_loss": no_library,
        "_use_cudnn_ctc_loss.Tensor": no_library,
        "_use_miopen_ctc_loss": no_library,  # asked for on every card since torch 2.13
        "_use_miopen_ctc_loss.Tensor": no_library,
        "_ctc_loss_backward": ctc_loss_backward,
    }
