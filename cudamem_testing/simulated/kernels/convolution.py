"""Convolutions by cuDNN: for tensors in the order of channels first it changes the order in a workspace.

Recorded on an H200 with torch 2.11 and cuDNN 9.19. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cudamem_testing.model.simulated_cards import CardModel
from cudamem_testing.simulated.kernels.memory import KIB, MIB, Memory, bytes_of, empty, rounded

Tensor = torch.Tensor


def kernels(memory: Memory, card: CardModel) -> dict[str, Callable[..., Any]]:
    """By the operator's name."""
    host, fill = memory.host, memory.fill

    def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
        last = _channels_last(x, weight)
        out = _empty(x, _result(x, weight, *how), last)
        memory.passing(x, 0 if last else _workspace(x, weight, out, how, forward=True))
        if memory.values:
            fill(out, torch.ops.aten.convolution(host(x), host(weight), None if bias is None else host(bias), *how))
        return out

    def convolution_backward(
        grad: Tensor, x: Tensor, weight: Tensor, bias: Sequence[int] | None, *rest: Any
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        how, wanted = rest[:-1], rest[-1]
        last = _channels_last(x, weight)
        held = None if grad.is_contiguous(memory_format=_format(last, grad)) else _empty(grad, grad.shape, last)
        workspace = 0 if last else _workspace(x, weight, grad, how, forward=False)
        parts = _partial_sums(x, weight, how) if workspace else 0
        into_x = into_weight = into_bias = None
        if wanted[0]:
            into_x = _empty(x, x.shape, last)
            memory.passing(x, workspace)
        if wanted[1]:
            into_weight = _empty(weight, weight.shape, last)
            memory.passing(x, workspace + parts)
        del held
        if wanted[2]:
            into_bias = empty(grad, (grad.shape[1],))
        if memory.values:
            found = torch.ops.aten.convolution_backward(host(grad), host(x), host(weight), bias, *rest)
            for into, one in zip((into_x, into_weight, into_bias), found, strict=True):
                if into is not None:
                    fill(into, one)
        return into_x, into_weight, into_bias

    return {"convolution": convolution, "convolution_backward": convolution_backward}


def _format(last: bool, tensor: Tensor) -> torch.memory_format:
    if not last:
        return torch.contiguous_format
    return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d


def _channels_last(*tensors: Tensor) -> bool:
    """Whether cuDNN computes with channels last: where any input is in that order, and in no other."""
    return any(
        one.dim() in (4, 5) and not one.is_contiguous() and one.is_contiguous(memory_format=_format(True, one))
        for one in tensors
    )


def _empty(near: Tensor, shape: Sequence[int], last: bool) -> Tensor:
    made = torch.empty(shape, dtype=near.dtype, device=near.device)
    if last:
        made = torch.empty(shape, dtype=near.dtype, device=near.device, memory_format=_format(True, made))
    return made


def _padded(tensor: Tensor) -> int:
    """Bytes of a copy with channels last, whose number is rounded up for tensor cores."""
    channels = tensor.shape[1]
    if tensor.element_size() == 2:
        return bytes_of(tensor) // max(channels, 1) * rounded(channels, 8)
    return bytes_of(tensor)


def _workspace(x: Tensor, weight: Tensor, result: Tensor, how: Sequence[Any], *, forward: bool) -> int:
    """Bytes of the copies with channels last that a convolution makes of tensors in another order."""
    stride, transposed, groups = how[0], how[3], how[-1]
    points = weight[0, 0].numel()
    if groups > 1 and weight.shape[1] == 1:  # each channel for itself
        return 0
    if x.shape[1] < 8 and (points < 49 or max(stride) >= 16):  # few channels are read as they are
        return 0
    if weight.shape[0] == 1 and not transposed:
        return 0
    if points == 1:  # a product of matrices, unless it skips points; the weights have no order
        return _padded(x) + _padded(result) + 16 if max(stride) > 1 else 0
    size = _padded(x) + _padded(weight) + 16
    return size if forward and not _orders_result(x, weight, how) else size + _padded(result)


def _orders_result(x: Tensor, weight: Tensor, how: Sequence[Any]) -> bool:
    """Whether the result is computed with channels last, too: all but some in full precision."""
    if x.element_size() == 2 or how[3] or x.shape[1] < 8:
        return True
    small = weight.shape[0] * weight.shape[1] <= 64 * 128
    return not (weight.shape[0] == 64 or (max(how[0]) > 1 and weight.shape[0] % 64 == 0 and small))


def _partial_sums(x: Tensor, weight: Tensor, how: Sequence[Any]) -> int:
    """Bytes of sums over parts of the batch, for small weights and large inputs."""
    size = 4 * weight.numel()
    if x.element_size() == 4 and MIB // 2 <= size < 4 * MIB and max(how[0]) == 1:
        return min(16 * size, 13_300_000)
    if size >= MIB or x.numel() <= MIB:
        return 0
    return 9 * MIB // 2 if size < 64 * KIB else 2 * MIB


def _result(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> list[int]:
    """Shape of the result."""
    found = [x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0]]
    number = x.dim() - 2
    for dim in range(number):
        s, p, d, o = (one[dim] if len(one) > 1 else one[0] for one in (stride, padding, dilation, output_padding))
        size, kernel = x.shape[dim + 2], d * (weight.shape[dim + 2] - 1) + 1
        found.append((size - 1) * s - 2 * p + kernel + o if transposed else (size + 2 * p - kernel) // s + 1)
    return found
