"""Scaled dot product attention: the kernels of cuDNN, flash attention and the memory-efficient one.

Which of them runs is decided in ``card_attention.h``. Recorded on an H200 with torch 2.11. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from cudamem_testing.model.simulated_cards import CardModel
from cudamem_testing.simulated.kernels.memory import Memory, bytes_of, empty, like_order, rounded
from cudamem_testing.torch_api import cuda_build

Tensor = torch.Tensor
FLOAT = torch.float32


def kernels(memory: Memory, card: CardModel) -> dict[str, Callable[..., Any]]:
    """By the operator's name."""
    found = _Attention(memory, card.processors)
    return {
        "_scaled_dot_product_cudnn_attention": found.cudnn,
        "_scaled_dot_product_cudnn_attention_backward": found.cudnn_backward,
        "_scaled_dot_product_flash_attention": found.flash,
        "_scaled_dot_product_flash_attention_backward": found.flash_backward,
        "cudamem_card::attend_written_out": found.written_out,
        "cudamem_card::attend_backward_written_out": found.backward_written_out,
    }


class _Attention:
    def __init__(self, memory: Memory, processors: int) -> None:
        self._memory = memory
        self._processors = processors

    # --- cuDNN ---

    def cudnn(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        logsumexp: bool,
        dropout: float = 0.0,
        causal: bool = False,
        debug: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        b, h, length, _ = query.shape
        seed, offset = (empty(query, (), torch.int64) for _ in range(2))
        out = like_order(query, (b, h, length, value.shape[-1]))
        sums = empty(query, (b, h, length, 1), FLOAT) if logsumexp else empty(query, (0,), FLOAT)
        if length > 1:
            self._memory.passing(query, 256)
        torch.ops.cudamem_card.attend(out, sums, seed, query, key, value, bias, dropout, causal, scale)
        return out, sums, None, None, length, key.shape[2], seed, offset, None

    def cudnn_backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        seed: Tensor,
        offset: Tensor,
        bias: Tensor | None,
        cum_q: Tensor | None,
        cum_k: Tensor | None,
        max_q: int,
        max_k: int,
        dropout: float,
        causal: bool,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        grads = [like_order(one, one.shape) for one in (query, key, value)]
        b, h, length, width = query.shape
        workspace = 4 * b * h * length * width + 4 * b * h * length + 256
        if key.shape[1] != h:  # each head of the query has its own part of what heads of the key share
            workspace += b * h * key.shape[2] * (width + value.shape[-1]) * key.element_size()
        self._memory.passing(query, workspace)
        rest = seed, query, key, value, bias, dropout, causal, scale
        torch.ops.cudamem_card.attend_backward(*grads, None, grad, out, logsumexp, *rest)
        return tuple(grads)

    # --- flash attention ---

    def flash(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout: float = 0.0,
        causal: bool = False,
        debug: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        b, h, length, _ = query.shape
        out = like_order(query, query.shape)
        sums = empty(query, (b, h, length), FLOAT)
        parts = 1 if dropout else self._flash_parts(b * h, length, key.shape[2], query.shape[-1])
        if parts > 1:
            columns = rounded(query.shape[-1], 32 if query.shape[-1] <= 128 else 64)
            self._memory.passing(query, 4 * parts * b * h * length, 4 * parts * b * h * length * columns)
        state = empty(query, (2,), torch.uint64)
        unused = empty(query, (), torch.uint64)
        torch.ops.cudamem_card.attend(out, sums, state, query, key, value, None, dropout, causal, scale)
        return out, sums, None, None, length, key.shape[2], state, unused, empty(query, (0,))

    def _flash_parts(self, heads: int, length: int, keys: int, width: int) -> int:
        """Into how many parts the keys are split where there are few queries for the card's multiprocessors.

        The fewest parts that keep at least 85 % as many multiprocessors busy as the best number does.
        """
        block = 256 if width <= 64 else 128 if width <= 128 else 64
        work, places, blocks = heads * (rounded(length, 64) // 64), 2 * self._processors, rounded(keys, block) // block
        if work >= 0.8 * places:
            return 1

        def share(parts: int) -> float:
            if parts > 1 and -(-blocks // parts) == -(-blocks // (parts - 1)):
                return 0.0
            waves = work * parts / places
            return waves / math.ceil(waves)

        shares = [share(parts) for parts in range(1, min(128, places, blocks) + 1)]
        return next((at for at, one in enumerate(shares, 1) if one >= 0.85 * max(shares)), 1)

    def flash_backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        cum_q: Tensor | None,
        cum_k: Tensor | None,
        max_q: int,
        max_k: int,
        dropout: float,
        causal: bool,
        state: Tensor,
        unused: Tensor,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        grads = [like_order(one, one.shape) for one in (query, key, value)]
        b, h, length, width = query.shape
        steps, columns = rounded(length, 128), rounded(width, 32 if width <= 128 else 64)
        expanded = key.shape[1] != h
        self._memory.passing(
            query,
            bytes_of(grad),
            bytes_of(out),
            4 * b * h * steps,
            4 * b * h * steps * columns,
            2 * b * h * key.shape[2] * width * key.element_size() if expanded else 0,
        )
        rest = state, query, key, value, None, dropout, causal, scale
        torch.ops.cudamem_card.attend_backward(*grads, None, grad, out, logsumexp, *rest)
        return tuple(grads)

    # --- values ---

    def written_out(
        self,
        out: Tensor,
        sums: Tensor,
        seed: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        dropout: float,
        causal: bool,
        scale: float | None,
    ) -> None:
        into, q, k, v, *biases = self._memory.hosts([out, query, key, value, *_given(bias)])
        if dropout:
            drawn = int(torch.randint(2**62, (), device=query.device).item())
            self._memory.host(seed).view(torch.int64).fill_(drawn)
        mask = biases[0] if biases else None
        into.copy_(_attend(q, k, v, mask, self._kept(seed, q, k, dropout), causal, scale))

    def backward_written_out(
        self,
        into_query: Tensor,
        into_key: Tensor,
        into_value: Tensor,
        into_bias: Tensor | None,
        grad: Tensor,
        out: Tensor,
        sums: Tensor,
        seed: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        dropout: float,
        causal: bool,
        scale: float | None,
    ) -> None:
        g, q, k, v, *biases = self._memory.hosts([grad, query, key, value, *_given(bias)])
        kept = self._kept(seed, q, k, dropout)
        mask = biases[0] if biases else None
        found = _attend_backward(q.float(), k.float(), v.float(), g.float(), mask, kept, causal, scale)
        grads = self._memory.hosts([into_query, into_key, into_value, *_given(into_bias)])
        for into, one in zip(grads, found, strict=False):
            into.copy_(one.sum_to_size(into.shape))

    def _kept(self, seed: Tensor, query: Tensor, key: Tensor, dropout: float) -> Tensor | None:
        """What dropout keeps of the weights, scaled; the same in forward and backward."""
        if not dropout:
            return None
        drawn = int(self._memory.host(seed).view(torch.int64).flatten()[0])
        generator = torch.Generator().manual_seed(drawn)
        shape = (*query.shape[:3], key.shape[2])
        return torch.empty(shape).bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)


def _given(tensor: Tensor | None) -> list[Tensor]:
    return [] if tensor is None else [tensor]


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    kept: Tensor | None,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Attention of tensors of the CPU, weights in full precision."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if kept is None and q.shape[-1] == v.shape[-1]:
        # Only a kernel that the CPU lacks may be allowed.
        if not torch.backends.cuda.math_sdp_enabled():  # type: ignore[no-untyped-call]
            written_out: Tensor = cuda_build.attention_written_out(q, k, v, bias, 0.0, causal, scale=scale)
            return written_out
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, bias, is_causal=causal, scale=scale)
    weights = _weights(q.float(), k.float(), bias, causal, scale)
    if kept is not None:
        weights = weights * kept
    return (weights @ v.float()).to(q.dtype)


def _scale(q: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


def _weights(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    scores = (q @ k.transpose(-1, -2)) * _scale(q, scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        rows, columns = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(rows, columns, dtype=torch.bool).tril().logical_not(), -math.inf)
    return scores.softmax(-1)


def _attend_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    bias: Tensor | None,
    kept: Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and the weights' bias, all in full precision."""
    heads, groups = k.shape[1], q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    weights = _weights(q, k, bias, causal, scale)
    used = weights if kept is None else weights * kept
    into_v = used.transpose(-1, -2) @ grad
    into_used = grad @ v.transpose(-1, -2)
    into_weights = into_used if kept is None else into_used * kept
    into_scores = weights * (into_weights - (into_weights * weights).sum(-1, keepdim=True))
    into_q = into_scores @ k * _scale(q, scale)
    into_k = into_scores.transpose(-1, -2) @ q * _scale(q, scale)
    if groups > 1:
        into_k, into_v = (one.view(one.shape[0], heads, groups, *one.shape[2:]).sum(2) for one in (into_k, into_v))
    return into_q, into_k, into_v, into_scores
