"""Operators whose kernels on a card take memory in ways of their own: attention, convolutions, recurrent
layers, norms; and those that torch has for CUDA alone.

Each module says what it allocates, in the order in which a card was recorded to (``fixtures/simulated/``), and computes
the values with the CPU's kernels over the same memory. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cudamem_testing.model.simulated_cards import CardModel
from cudamem_testing.simulated.kernels import attention, cells, convolution, indexing, norms, recurrent
from cudamem_testing.simulated.kernels.memory import Memory
from cudamem_testing.simulated.native import NativeCard


def register(native: NativeCard, card: CardModel) -> Callable[[], None]:
    """Register all of them; what takes them out again."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    memory = Memory(native)
    for module in (attention, cells, convolution, indexing, norms, recurrent):
        for name, kernel in module.kernels(memory, card).items():
            library.impl(name, kernel, "CUDA")
    leave: Callable[[], None] = library._destroy
    return leave
