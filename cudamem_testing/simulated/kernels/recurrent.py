"""Recurrent layers by cuDNN: weights in one buffer, a reserve for backward, and workspaces.

Recorded on an H200 with torch 2.11 and cuDNN 9.19. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from cudamem_testing.model.simulated_cards import CardModel
from cudamem_testing.simulated.kernels.memory import MIB, Memory, empty

Tensor = torch.Tensor
RELU, TANH, LSTM, GRU = range(4)
#: What cuDNN keeps of a step for backward, in states of a layer.
KEPT = {RELU: 1, TANH: 1, LSTM: 5, GRU: 6}
#: A workspace has so many bytes for each layer and way, beside what depends on shapes.
FIXED = 8 * MIB
#: Gates, and states of a batch that a layer keeps in its workspace.
GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}
KEPT_STATES = {RELU: 5, TANH: 5, LSTM: 10, GRU: 5}
#: Elements that the forward pass takes more where the width is no multiple of 64, not in bfloat16.
OF_UNEVEN = 1_000_000


class Layers(NamedTuple):
    """How a call is made, as the operator's arguments say."""

    mode: int
    hidden: int
    projected: int
    number: int
    batch_first: bool
    dropout: float
    train: bool
    both_ways: bool
    batch_sizes: Sequence[int] = ()

    @property
    def out(self) -> int:
        """Features of the result."""
        return (2 if self.both_ways else 1) * (self.projected or self.hidden)

    def steps(self, x: Tensor) -> int:
        """Steps of all sequences together."""
        return x.shape[0] if self.batch_sizes else x.shape[0] * x.shape[1]

    def shape(self, x: Tensor) -> tuple[int, ...]:
        """Of the result, with steps first; of packed sequences all steps in one."""
        if self.batch_sizes:
            return x.shape[0], self.out
        batch, steps = (x.shape[0], x.shape[1]) if self.batch_first else (x.shape[1], x.shape[0])
        return steps, batch, self.out

    def reserve(self, x: Tensor) -> int:
        """Bytes that backward needs: steps of each layer, what passes from layer to layer, and masks of one bit."""
        if not self.train:
            return 0
        ways, between = 2 if self.both_ways else 1, self.number - 1
        states = self.steps(x) * self.hidden
        masks = ways * ways * between * states // 8 if self.dropout > 0 else 0
        return ways * (self.number * KEPT[self.mode] + between) * states * x.element_size() + masks + 256

    def workspace(self, x: Tensor, weights: Sequence[Tensor], forward: bool) -> int:
        """Bytes; exact for one and two layers of a width that is a multiple of 64, 4 % too few for three."""
        ways = 2 if self.both_ways else 1
        batch = self.batch_sizes[0] if self.batch_sizes else x.shape[0 if self.batch_first else 1]
        states = self.steps(x) * self.hidden * ways
        widest = max(x.numel(), states if self.number > 1 else 0)
        elements = sum(one.numel() for one in weights if one.dim() > 1) + (GATES[self.mode] + ways) * states
        elements += x.numel() + widest + KEPT_STATES[self.mode] * self.number * ways * batch * self.hidden
        if forward and self.hidden % 64 and x.dtype != torch.bfloat16:
            elements += OF_UNEVEN
        return FIXED * self.number * ways + 256 + 8 * batch + elements * x.element_size()

    def run(self, x: Tensor, weights: Sequence[Tensor], stride: int, hx: Tensor, cx: Tensor | None) -> list[Tensor]:
        """The CPU's result: output, last state, last cell."""
        rest: tuple[Any, ...] = (stride > 3, self.number, self.dropout, self.train, self.both_ways)
        given: tuple[Any, ...] = (x, torch.tensor(self.batch_sizes)) if self.batch_sizes else (x,)
        rest = rest if self.batch_sizes else (*rest, self.batch_first)
        if self.mode == LSTM:
            states = [one for one in (hx, cx) if one is not None]
            run: Any = torch.lstm
            return list(run(*given, states, list(weights), *rest))
        function: Any = {RELU: torch.rnn_relu, TANH: torch.rnn_tanh, GRU: torch.gru}[self.mode]
        return list(function(*given, hx, list(weights), *rest))


def kernels(memory: Memory, card: CardModel) -> dict[str, Callable[..., Any]]:
    """By the operator's name."""
    host, beside = memory.host, _Differentiating()

    def flatten(weights: Sequence[Tensor], *rest: Any) -> Tensor:
        buffer = empty(weights[0], (sum(one.numel() for one in weights),))
        at = 0
        for one in weights:
            view = buffer[at : at + one.numel()].view(one.shape)
            view.copy_(one)
            one.set_(view)  # type: ignore[call-overload]
            at += one.numel()
        return buffer

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
            seed = int(torch.randint(2**62, (), device=x.device).item())
            if kept:
                host(reserve)[:8].view(torch.int64).fill_(seed)
            given = host(x), [host(one) for one in weights], stride, host(hx), None if cx is None else host(cx)
            with torch.random.fork_rng(devices=()):
                torch.default_generator.manual_seed(seed)
                found = layers.run(*given)
            for into, one in zip((out, last, cell), found, strict=False):
                memory.fill(into, one)
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
        steps_first = x.transpose(0, 1) if layers.batch_first else x
        into_x, into_hx = empty(x, steps_first.shape), torch.empty_like(hx)
        if layers.batch_first:
            into_x = into_x.transpose(0, 1)
        into_cx = None if cx is None else torch.empty_like(cx)
        workspace = layers.workspace(x, weights, False)
        memory.passing(x, workspace)
        while held:
            held.pop()
        again = torch.empty_like(x) if layers.batch_first else None
        flat = empty(x, (sum(one.numel() for one in weights),))
        into_weights, at = [], 0
        for one in weights:
            into_weights.append(flat[at : at + one.numel()].view(one.shape))
            at += one.numel()
        memory.passing(x, workspace)
        del again, zeros
        if memory.values:
            seed = int(host(reserve)[:8].view(torch.int64)[0])
            inputs = [host(one).detach() for one in (x, hx, *([] if cx is None else [cx]), *weights)]
            grads = [None if one is None else host(one) for one in (grad, grad_last, grad_cell)]
            found = beside.run(layers, stride, inputs, grads, seed, cx is not None)
            into = [into_x, into_hx, *([] if into_cx is None else [into_cx]), *into_weights]
            for one, value in zip(into, found, strict=True):
                memory.fill(one, value)
        return into_x, into_hx, into_cx, into_weights

    return {"_cudnn_rnn": forward, "_cudnn_rnn_backward": backward, "_cudnn_rnn_flatten_weight": flatten}


class _Differentiating:
    """A thread that differentiates, because autograd is switched off inside a kernel.

    It stays, with the threads that the CPU's kernels start for each calling thread: starting those took longer than a
    layer. A forked process starts its own.
    """

    def __init__(self) -> None:
        self._of_process = 0

    def run(self, *arguments: Any) -> list[Tensor]:
        """The gradients of the inputs of layers."""
        if self._of_process != os.getpid():
            self._of_process, self._thread = os.getpid(), ThreadPoolExecutor(1)
        return self._thread.submit(_differentiated, *arguments).result()


def _differentiated(
    layers: Layers, stride: int, inputs: list[Tensor], grads: list[Tensor | None], seed: int, has_cell: bool
) -> list[Tensor]:
    torch.get_num_threads()  # this thread, too, uses as many as were set: oneDNN does not ask
    with torch.enable_grad(), torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        x, hx, *rest = (one.requires_grad_() for one in inputs)
        cx = rest.pop(0) if has_cell else None
        results = layers.run(x, rest, stride, hx, cx)
    wanted = [(one, grad) for one, grad in zip(results, grads, strict=False) if grad is not None]
    outputs, given = zip(*wanted, strict=True)
    found = torch.autograd.grad(outputs, inputs, given, allow_unused=True)
    return [torch.zeros_like(one) if value is None else value for one, value in zip(inputs, found, strict=True)]
