"""How recurrent layers are called, and the sizes of what cuDNN allocates for them.

Recorded on an H200 with torch 2.11 and cuDNN 9.19. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from cudamem_testing.simulated.kernels.memory import MIB

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

#: Bytes at the start of a reserve: the seed of its dropout, and nothing.
SEED = 256


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
    def ways(self) -> int:
        """Directions in which each layer reads."""
        return 2 if self.both_ways else 1

    @property
    def out(self) -> int:
        """Features of the result."""
        return self.ways * (self.projected or self.hidden)

    def sizes(self, x: Tensor) -> Sequence[int]:
        """How many sequences each step has."""
        batch, steps = (0, 1) if self.batch_first else (1, 0)
        return self.batch_sizes or [x.shape[batch]] * x.shape[steps]

    def rows(self, x: Tensor) -> Tensor:
        """The steps of all sequences, one after the other: of an input, a result, or a gradient of those."""
        if self.batch_sizes:
            return x
        return (x.transpose(0, 1) if self.batch_first else x).flatten(0, 1)

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
        ways, between = self.ways, self.number - 1
        states = self.steps(x) * self.hidden
        masks = ways * ways * between * states // 8 if self.dropout > 0 else 0
        return ways * (self.number * KEPT[self.mode] + between) * states * x.element_size() + masks + SEED

    def workspace(self, x: Tensor, weights: Sequence[Tensor], forward: bool) -> int:
        """Bytes; exact for one and two layers of a width that is a multiple of 64, 4 % too few for three."""
        ways = self.ways
        batch = self.batch_sizes[0] if self.batch_sizes else x.shape[0 if self.batch_first else 1]
        states = self.steps(x) * self.hidden * ways
        widest = max(x.numel(), states if self.number > 1 else 0)
        elements = sum(one.numel() for one in weights if one.dim() > 1) + (GATES[self.mode] + ways) * states
        elements += x.numel() + widest + KEPT_STATES[self.mode] * self.number * ways * batch * self.hidden
        if forward and self.hidden % 64 and x.dtype != torch.bfloat16:
            elements += OF_UNEVEN
        return FIXED * self.number * ways + 256 + 8 * batch + elements * x.element_size()
