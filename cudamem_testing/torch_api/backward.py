"""Autograd's thread of a card, in which backward passes run. Torch has it from the first backward pass on, and gives it
no name in Python: that of the operating system says whether it is there. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

TASKS = Path("/proc/self/task")


class _InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, action: Callable[[], object]) -> torch.Tensor:
        ctx.action = action
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.action()
        return grads[0], None


def has_thread(index: int) -> bool:
    """Whether the thread of a card is there; not known, and ``False``, where the system has no ``/proc``."""
    names = []
    with suppress(OSError):
        for task in TASKS.iterdir():
            with suppress(OSError):  # it has ended
                names.append((task / "comm").read_text().strip())
    return f"pt_autograd_{index}" in names


def in_thread(index: int, action: Callable[[], object]) -> None:
    """Run ``action`` in the thread of a card, which is started if it is not there. What it raises is raised here."""
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.zeros((), device=f"cuda:{index}", requires_grad=True)
        torch.autograd.grad(_InBackward.apply(x, action), x)  # type: ignore[no-untyped-call]
