"""Convolutions by cuDNN, which chooses among many kernels; each has a workspace of its own.

The workspaces of recorded calls are in a table (``convolutions.json.gz``): a call of the same type, order in memory,
shapes, strides, padding, dilation and groups always takes the same. Other calls follow rules: cuDNN changes the order
of tensors with channels first in its workspace. Recorded on an H200 with torch 2.11 and cuDNN 9.19. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cudamem_testing.model.simulated_cards import CardModel
from cudamem_testing.simulated.kernels.memory import KIB, MIB, Memory, bytes_of, rounded

Tensor = torch.Tensor
KINDS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def kernels(memory: Memory, card: CardModel) -> dict[str, Callable[..., Any]]:
    """By the operator's name."""
    host, fill = memory.host, memory.fill

    def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
        last = _is_last(x) or _is_last(weight)
        held = _in_order(x, last)
        out = _empty(x, _result(x, weight, *how), last)
        memory.passing(x, _workspaces(x, weight, out, how, last).forward)
        del held
        if memory.values:
            fill(out, torch.ops.aten.convolution(host(x), host(weight), None if bias is None else host(bias), *how))
        return out

    def convolution_backward(
        grad: Tensor, x: Tensor, weight: Tensor, bias: Sequence[int] | None, *rest: Any
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        how, wanted = rest[:-1], rest[-1]
        last = _is_last(x) or _is_last(weight)
        held = [_in_order(grad, last), _in_order(x, last)]
        workspaces = _workspaces(x, weight, grad, how, last)
        into_x = into_weight = into_bias = None
        if wanted[0]:
            into_x = _empty(x, x.shape, last)
            memory.passing(x, workspaces.into_input)
        if wanted[1]:
            into_weight = _empty(weight, weight.shape, last)
            memory.passing(x, workspaces.into_weight)
        del held
        if wanted[2]:
            with torch.autocast("cuda", enabled=False):  # else it would be summed up in full precision
                into_bias = grad.sum([0, *range(2, grad.dim())])
        if memory.values and (wanted[0] or wanted[1]):
            more = bias, *how, [*wanted[:2], False]
            found = torch.ops.aten.convolution_backward(host(grad), host(x), host(weight), *more)
            for into, one in zip((into_x, into_weight), found, strict=False):
                if into is not None:
                    fill(into, one)
        return into_x, into_weight, into_bias

    return {"convolution": convolution, "convolution_backward": convolution_backward}


class Workspaces(NamedTuple):
    """Bytes that a convolution and its two gradients need while they are computed."""

    forward: int
    into_input: int
    into_weight: int


def _workspaces(x: Tensor, weight: Tensor, result: Tensor, how: Sequence[Any], last: bool) -> Workspaces:
    backward = 0 if last else _workspace(x, weight, result, how, forward=False)
    ruled = (
        0 if last else _workspace(x, weight, result, how, forward=True),
        backward,
        backward + (_partial_sums(x, weight, how) if backward else 0),
    )
    recorded = _table().get(_key(x, weight, how, last), (None, None, None))
    return Workspaces(*(rule if size is None else size for rule, size in zip(ruled, recorded, strict=True)))


@cache
def _table() -> dict[str, list[int | None]]:
    """Workspaces of recorded calls: forward, into the input, into the weight; ``None`` where that was not recorded."""
    packed = Path(__file__).with_name("convolutions.json.gz").read_bytes()
    found: dict[str, list[int | None]] = json.loads(gzip.decompress(packed))
    return found


def _key(x: Tensor, weight: Tensor, how: Sequence[Any], last: bool) -> str:
    """A call in the table: ``f32 last 8x3x32x32 16x3x3x3 1x1 1x1 1x1 1``, and ``t0x0`` if it is transposed."""

    def joined(numbers: Iterable[int]) -> str:
        return "x".join(map(str, numbers))

    stride, padding, dilation, transposed, more, groups = how
    dims = x.dim() - 2
    each = (joined(one if len(one) == dims else [one[0]] * dims) for one in (stride, padding, dilation, more))
    *kept, out = each
    words = [KINDS.get(x.dtype, str(x.dtype)), *(["last"] if last else []), joined(x.shape), joined(weight.shape)]
    return " ".join([*words, *kept, str(groups), *([f"t{out}"] if transposed else [])])


def _format(last: bool, dims: int) -> torch.memory_format:
    if not last:
        return torch.contiguous_format
    return torch.channels_last if dims == 4 else torch.channels_last_3d


def _is_last(tensor: Tensor) -> bool:
    """Whether channels are next to each other in memory; if they are in any input, cuDNN computes in that order."""
    if tensor.dim() not in (4, 5):
        return False
    least = 0
    for dim in (1, *range(tensor.dim() - 1, 1, -1), 0):
        size, stride = tensor.shape[dim], tensor.stride(dim)
        if size == 0 or stride < least or (dim == 0 and least == tensor.stride(1)):
            return False
        least = stride * size
    return True


def _in_order(tensor: Tensor, last: bool) -> Tensor | None:
    """Memory for a copy of a tensor in the order that cuDNN computes in; ``None`` if it is in that order."""
    if tensor.is_contiguous(memory_format=_format(last, tensor.dim())):
        return None
    return _empty(tensor, tensor.shape, last)


def _empty(near: Tensor, shape: Sequence[int], last: bool) -> Tensor:
    return torch.empty(shape, dtype=near.dtype, device=near.device, memory_format=_format(last, len(shape)))


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
