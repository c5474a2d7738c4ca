"""What a process runs in place of its target: it arrives as a pickle, and loads what measures where torch is there.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from cudamem_testing.ranks.order import Order

#: By name, because it makes targets in its turn: of the processes that a process starts.
_MEASURES = "cudamem_testing.ranks.child"


class Target:
    """What a process runs in place of its target: the same, measured."""

    def __init__(self, target: Callable[..., object], order: Order) -> None:
        self._target = target
        self._order = order

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Return nothing, as ``multiprocessing`` drops what a target returns: it is freed before memory is judged."""
        if "torch" not in sys.modules:  # the target's module does not use it
            self._target(*args, **kwargs)
            return
        child = import_module(_MEASURES)
        with child.measured(self._order):
            child.run(self._target, *args, **kwargs)
