"""In which thread backward passes run. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from types import CodeType
from typing import Any

from cudamem_testing.torch_api.process import torch


def backward_code() -> CodeType | None:
    """The code of the function that calls autograd's engine; ``None`` if this torch has no such function."""
    function = getattr(torch.autograd.graph, "_engine_run_backward", None)
    code: CodeType | None = getattr(function, "__code__", None)
    return code


def passes_in_this_thread() -> Any:
    """A context in which backward passes that this thread calls run in it, not in one that autograd has for a card.

    Begins at once. The setting is the thread's own: end it in the same one.
    """
    return torch.autograd.set_multithreading_enabled(False)
