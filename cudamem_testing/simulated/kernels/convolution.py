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

    def workspaces(x: Tensor, weight: Tensor, result: Tensor, *rest: Any) -> list[int]:
        return list(_workspaces(x, weight, result, rest[:-1], rest[-1]))

    return {"cudamem_card::convolution_workspaces": workspaces}


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
