"""The steps of recurrent layers on the CPU: forward keeps what backward reads, as cuDNN does in its reserve.

Rows are the steps of all sequences, one after the other; a step has as many rows as there are sequences that long, so
packed sequences and others are one case. The formulas are those in the documentation of torch's ``LSTM``, ``GRU`` and
``RNN``, differentiated by hand: what does not depend on the step after it is computed for all steps at once.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from cudamem_testing.simulated.kernels.layers import GATES, GRU, KEPT, LSTM, RELU, Layers

Tensor = torch.Tensor


class Weights(NamedTuple):
    """Of one layer in one direction; no bias and no projection where it has none."""

    of_input: Tensor
    of_state: Tensor
    bias: Tensor | None
    bias_of_state: Tensor | None
    projection: Tensor | None

    @classmethod
    def of(cls, weights: Sequence[Tensor], stride: int, at: int) -> Weights:
        """Those of a layer and direction in the operator's list, which has ``stride`` for each."""
        own = list(weights[at * stride : (at + 1) * stride])
        projection = own.pop() if stride % 2 else None
        bias, bias_of_state = own[2:] if len(own) == 4 else (None, None)
        return cls(own[0], own[1], bias, bias_of_state, projection)

    def gradients(self, of_input: Tensor, of_state: Tensor, x: Tensor, before: Tensor) -> list[Tensor]:
        """Of matrices and biases; from those of the gates, the layer's input and the states before each step."""
        found = [of_input.t() @ x, of_state.t() @ before]
        return found if self.bias is None else [*found, of_input.sum(0), of_state.sum(0)]


class Kept(NamedTuple):
    """What backward reads of one layer in one direction, by rows."""

    gates: Tensor
    more: Tensor  # cells of an LSTM; what the state adds to the gates of a GRU


@dataclass(frozen=True)
class Pass:
    """Forward and backward of all layers for one input.

    ``x`` has the sequences' steps as rows, ``sizes`` how many of them each step has, ``room`` elements that stay until
    backward (``None``: forward alone). Dropout between layers is drawn from ``seed`` in both.
    """

    layers: Layers
    x: Tensor
    sizes: Sequence[int]
    weights: Sequence[Tensor]
    stride: int
    room: Tensor | None
    seed: int

    def forward(
        self, hx: Tensor, out: Tensor, last: Tensor, cx: Tensor | None = None, cell: Tensor | None = None
    ) -> None:
        """Fill ``out`` (rows), and the ``last`` states and cells."""
        given = self.x
        for layer in range(self.layers.number):
            given = self.dropped(given, layer)
            into = out if layer + 1 == self.layers.number else self._between(layer)
            for way, rows in enumerate(self._ways(into)):
                at = layer * self.layers.ways + way
                state, cells = self._forward(at, given, hx[at], None if cx is None else cx[at], rows)
                last[at].copy_(state)
                if cell is not None and cells is not None:
                    cell[at].copy_(cells)
            given = into

    def backward(
        self,
        hx: Tensor,
        out: Tensor,
        grad: Tensor | None,
        grad_last: Tensor | None,
        grad_cell: Tensor | None,
        cx: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
        """Gradients of the input's rows, first states, first cells and weights."""
        above = torch.zeros_like(out) if grad is None else grad
        found: dict[int, Gradients] = {}
        for layer in reversed(range(self.layers.number)):
            given = self.dropped(self._between(layer - 1) if layer else self.x, layer)
            results = self._between(layer) if layer + 1 < self.layers.number else out
            own = []
            for way, (rows, grads) in enumerate(zip(self._ways(results), self._ways(above), strict=True)):
                at = layer * self.layers.ways + way
                last = torch.zeros_like(hx[at]) if grad_last is None else grad_last[at]
                cells = None
                if cx is not None:
                    cells = cx[at], torch.zeros_like(cx[at]) if grad_cell is None else grad_cell[at]
                found[at] = self._backward(at, given, hx[at], rows, grads, last, cells)
                own.append(found[at].of_x)
            above = self.dropped(own[0] if len(own) == 1 else own[0] + own[1], layer)
        every = [found[at] for at in sorted(found)]
        cells_of = [one.of_cell for one in every if one.of_cell is not None]
        of_cx = torch.stack(cells_of) if cells_of else None
        return above, torch.stack([one.of_state for one in every]), of_cx, [w for one in every for w in one.of_weights]

    @cached_property
    def even(self) -> bool:
        """Whether all sequences have the same length."""
        return len(set(self.sizes)) == 1

    # --- one layer in one direction ---

    def _forward(
        self, at: int, x: Tensor, state: Tensor, cells: Tensor | None, out: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        mode, own, kept = self.layers.mode, self._weights(at), self._kept(at)
        across = own.of_state.t()
        bias = own.bias
        if bias is not None and own.bias_of_state is not None and mode != GRU:
            bias = bias + own.bias_of_state
        if bias is None:
            torch.mm(x, own.of_input.t(), out=kept.gates)
        else:
            torch.addmm(bias, x, own.of_input.t(), out=kept.gates)
        parts = list(zip(*(self._steps(part) for part in self._columns(mode, kept, out)), strict=True))
        for step in self._order(at):
            before = self._at(step, state)
            if mode == LSTM and cells is not None:
                gates, two, bent, opened, i, f, now, rows = parts[step]
                gates.addmm_(before, across)
                two.sigmoid_()
                bent.tanh_()
                opened.sigmoid_()
                torch.mul(f, self._at(step, cells), out=now)
                now.addcmul_(i, bent)
                cells = self._joined(now, cells)
                if own.projection is None:
                    torch.mul(opened, now.tanh(), out=rows)
                else:
                    rows.copy_((opened * now.tanh()) @ own.projection.t())
            elif mode == GRU:
                added, two, added_to_two, r, z, n, of_n, rows = parts[step]
                if own.bias_of_state is None:
                    torch.mm(before, across, out=added)
                else:
                    torch.addmm(own.bias_of_state, before, across, out=added)
                two.add_(added_to_two).sigmoid_()
                n.addcmul_(r, of_n).tanh_()
                torch.lerp(n, before, z, out=rows)
            else:
                gates, rows = parts[step]
                gates.addmm_(before, across)
                if mode == RELU:
                    torch.clamp(gates, min=0, out=rows)
                else:
                    torch.tanh(gates, out=rows)
            state = self._joined(rows, state)
        return state, cells

    def _backward(
        self,
        at: int,
        x: Tensor,
        hx: Tensor,
        out: Tensor,
        grads: Tensor,
        last: Tensor,
        cells: tuple[Tensor, Tensor] | None,
    ) -> Gradients:
        own, before = self._weights(at), self._before(at, out, hx)
        if self.layers.mode == LSTM and cells is not None:
            return self._backward_of_lstm(at, own, x, before, grads, last, *cells)
        if self.layers.mode == GRU:
            return self._backward_of_gru(at, own, x, before, grads, last)
        factors = (out > 0).to(out.dtype) if self.layers.mode == RELU else 1 - out * out
        of_gates = torch.empty_like(factors)
        state = last
        for step, (into, above, factor) in self._back(at, of_gates, grads, factors):
            torch.mul(above + self._at(step, state), factor, out=into)
            state = self._joined(into @ own.of_state, state)
        return Gradients(of_gates @ own.of_input, state, None, own.gradients(of_gates, of_gates, x, before))

    def _backward_of_lstm(
        self,
        at: int,
        own: Weights,
        x: Tensor,
        before: Tensor,
        grads: Tensor,
        last: Tensor,
        cx: Tensor,
        last_cell: Tensor,
    ) -> Gradients:
        kept = self._kept(at)
        i, f, g, o = kept.gates.chunk(4, 1)
        bent = kept.more.tanh()
        # What the gradient of a cell is multiplied with for each gate of it, and that of a state for the last.
        of_gates = torch.stack([g * i * (1 - i), self._before(at, kept.more, cx) * f * (1 - f), i * (1 - g * g)], 1)
        of_output, of_bent = bent * o * (1 - o), o * (1 - bent * bent)
        found = torch.empty_like(kept.gates)
        three, fourth = found.view(len(found), 4, -1)[:, :3], found[:, 3 * self.layers.hidden :]
        projected = torch.empty_like(grads)
        state, cells = last, last_cell
        parts = found, three, fourth, projected, grads, of_gates, of_output, of_bent, f
        for step, (into, into_three, into_fourth, into_state, above, factors, factor, bend, forget) in self._back(
            at, *parts
        ):
            of_state = above + self._at(step, state)
            if own.projection is not None:
                into_state.copy_(of_state)
                of_state = of_state @ own.projection
            of_cell = torch.addcmul(self._at(step, cells), of_state, bend)
            torch.mul(of_cell.unsqueeze(1), factors, out=into_three)
            torch.mul(of_state, factor, out=into_fourth)
            state = self._joined(into @ own.of_state, state)
            cells = self._joined(of_cell * forget, cells)
        of_weights = own.gradients(found, found, x, before)
        if own.projection is not None:
            of_weights.append(projected.t() @ (o * bent))
        return Gradients(found @ own.of_input, state, cells, of_weights)

    def _backward_of_gru(
        self, at: int, own: Weights, x: Tensor, before: Tensor, grads: Tensor, last: Tensor
    ) -> Gradients:
        kept, hidden = self._kept(at), self.layers.hidden
        (r, z, n), of_n = kept.gates.chunk(3, 1), kept.more[:, 2 * hidden :]
        to_n = (1 - z) * (1 - n * n)
        factors = torch.stack([to_n * of_n * r * (1 - r), (before - n) * z * (1 - z), to_n * r, to_n], 1)
        found = torch.empty_like(factors)
        of_state = found.flatten(1)[:, : 3 * hidden]
        state = last
        for step, (into, into_state, above, factor, stays) in self._back(at, found, of_state, grads, factors, z):
            both = above + self._at(step, state)
            torch.mul(both.unsqueeze(1), factor, out=into)
            state = self._joined((both * stays).addmm_(into_state, own.of_state), state)
        of_gates = torch.cat([found[:, 0], found[:, 1], found[:, 3]], 1)
        return Gradients(of_gates @ own.of_input, state, None, own.gradients(of_gates, of_state, x, before))

    # --- where things lie ---

    def _columns(self, mode: int, kept: Kept, out: Tensor) -> tuple[Tensor, ...]:
        """What each step of the forward pass reads and writes."""
        hidden, gates = self.layers.hidden, kept.gates
        if mode == LSTM:
            i, f, g, o = gates.chunk(4, 1)
            return gates, gates[:, : 2 * hidden], g, o, i, f, kept.more, out
        if mode == GRU:
            r, z, n = gates.chunk(3, 1)
            added = kept.more
            return added, gates[:, : 2 * hidden], added[:, : 2 * hidden], r, z, n, added[:, 2 * hidden :], out
        return gates, out

    def _ways(self, rows: Tensor) -> Sequence[Tensor]:
        """The columns of each direction."""
        return [rows] if self.layers.ways == 1 else rows.chunk(2, 1)

    def _steps(self, rows: Tensor) -> tuple[Tensor, ...]:
        return rows.split_with_sizes(list(self.sizes))

    def _at(self, step: int, state: Tensor) -> Tensor:
        """Of the sequences that a step has, which are the first ones."""
        return state if self.even else state[: self.sizes[step]]

    def _joined(self, rows: Tensor, state: Tensor) -> Tensor:
        """The states after a step: of the sequences that it has, and of the others as they were."""
        return rows if self.even else torch.cat([rows, state[rows.shape[0] :]])

    def _order(self, at: int) -> range:
        steps = range(len(self.sizes))
        return steps[::-1] if at % self.layers.ways else steps

    def _back(self, at: int, *rows: Tensor) -> list[tuple[int, tuple[Tensor, ...]]]:
        """Steps in the order of backward, with their parts."""
        parts = list(zip(*(self._steps(one) for one in rows), strict=True))
        return [(step, parts[step]) for step in reversed(self._order(at))]

    def _before(self, at: int, rows: Tensor, first: Tensor) -> Tensor:
        """The rows of the step before each step, where a sequence begins those of ``first``."""
        parts, found, state = self._steps(rows), [first] * len(self.sizes), first
        for step in self._order(at):
            found[step] = self._at(step, state)
            state = self._joined(parts[step], state)
        return torch.cat(found)

    def _weights(self, at: int) -> Weights:
        return Weights.of(self.weights, self.stride, at)

    def _kept(self, at: int) -> Kept:
        rows, hidden, mode = self.x.shape[0], self.layers.hidden, self.layers.mode
        gates = GATES[mode] * hidden
        more = {LSTM: hidden, GRU: gates}.get(mode, 0)
        if self.room is None:
            return Kept(self.x.new_empty((rows, gates)), self.x.new_empty((rows, more)))
        own = self.room.narrow(0, at * KEPT[mode] * rows * hidden, rows * (gates + more))
        return Kept(own[: rows * gates].view(rows, gates), own[rows * gates :].view(rows, more))

    def _between(self, layer: int) -> Tensor:
        """The result of a layer that is not the last."""
        rows, out = self.x.shape[0], self.layers.out
        if self.room is None:
            return self.x.new_empty((rows, out))
        widest = self.layers.ways * self.layers.hidden
        start = (self.layers.number * KEPT[self.layers.mode] + layer) * rows * widest
        return self.room.narrow(0, start, rows * out).view(rows, out)

    def dropped(self, rows: Tensor, layer: int) -> Tensor:
        """The input of a layer, or its gradient, after dropout."""
        chance = self.layers.dropout
        if not (layer and chance and self.layers.train):
            return rows
        drawn = torch.Generator().manual_seed(self.seed + layer)
        stays = torch.empty_like(rows).bernoulli_(1 - chance, generator=drawn)
        return rows * stays.mul_(1 / (1 - chance) if chance < 1 else 0)


class Gradients(NamedTuple):
    """Of one layer in one direction."""

    of_x: Tensor
    of_state: Tensor
    of_cell: Tensor | None
    of_weights: list[Tensor]
