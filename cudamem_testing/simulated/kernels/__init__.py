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
    libraries: dict[str, Any] = {}
    memory = Memory(native)
    for module in (attention, cells, convolution, indexing, norms, recurrent):
        for name, kernel in module.kernels(memory, card).items():
            namespace = name.split("::")[0] if "::" in name else "aten"
            if namespace not in libraries:
                libraries[namespace] = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
            libraries[namespace].impl(name, kernel, "CUDA")

    def leave() -> None:
        for library in libraries.values():
            library._destroy()

    return leave
