"""LSTM layers by oneDNN, with which torch computes them on the CPU, quicker than single steps. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cudamem_testing.simulated.kernels.layers import LSTM, Layers

Tensor = torch.Tensor


def computes(layers: Layers, x: Tensor, stride: int, even: bool) -> bool:
    """Whether oneDNN has these layers: with biases, without projections, of sequences of one length, in float32."""
    plain = layers.mode == LSTM and stride == 4 and even and x.dtype == torch.float32
    has_library: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return plain and has_library and hasattr(torch.ops.aten, "mkldnn_rnn_layer_backward")


class Layer:
    """One layer in one direction, for sequences of shape (steps, batch, features)."""

    def __init__(self, layers: Layers, weights: Sequence[Tensor], reverse: bool) -> None:
        self._weights, self._reverse = weights, reverse
        self._kind = LSTM, layers.hidden, layers.number, True

    def forward(self, x: Tensor, hx: Tensor, cx: Tensor, backward: bool) -> tuple[Tensor, ...]:
        """Output, last state, last cell; and what oneDNN needs for ``backward``, if that follows."""
        with torch.set_grad_enabled(backward):
            found: tuple[Tensor, ...] = torch.ops.aten.mkldnn_rnn_layer(
                x, *self._weights, hx, cx, self._reverse, [], *self._kind, False, False, backward
            )
        return found

    def backward(
        self, x: Tensor, hx: Tensor, cx: Tensor, forward: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Gradients of input, first state, first cell and weights, from what ``forward`` gave and its gradients."""
        given: tuple[Any, ...] = (x, *self._weights, hx, cx, *forward[:3], *grads, self._reverse, *self._kind)
        found = torch.ops.aten.mkldnn_rnn_layer_backward(*given, True, False, [], False, forward[3])
        of_x, *of_weights, of_hx, of_cx = found
        return of_x, of_hx, of_cx, *of_weights
