"""Modes of the dispatcher: what sees every operator.

Importing this module imports torch.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode"]
