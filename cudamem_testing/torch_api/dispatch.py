"""Modes of the dispatcher: what sees every operator.

Importing this module imports torch.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode", "operator_name"]


def operator_name(func: Any) -> str:
    """``aten::add`` of ``aten.add.Tensor``; higher-order operators have a plain name."""
    return str(func.name()).partition(".")[0]
