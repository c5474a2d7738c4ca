"""What a process runs in place of its target: it arrives as a pickle, and loads what measures where torch is there.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cudamem_testing.model.settings import Settings
from cudamem_testing.run.running import Asked


class Order(NamedTuple):
    """What a process is to measure, for which test, and where it says what it took."""

    folder: str
    number: int
    name: str
    nodeid: str
    root: str
    settings: Settings
    asked: Asked
    known: bytes | None = None

    @property
    def path(self) -> Path:
        """The file of the process."""
        return Path(self.folder) / f"{self.number}.json"


class Target:
    """What a process runs in place of its target: the same, measured."""

    def __init__(self, target: Callable[..., object], order: Order) -> None:
        self._target = target
        self._order = order

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        if "torch" not in sys.modules:  # the target's module does not use it
            return self._target(*args, **kwargs)
        from cudamem_testing.ranks.child import measured

        with measured(self._order):
            return run(self._target, *args, **kwargs)


def run(function: Callable[..., object], *args: Any, **kwargs: Any) -> object:
    """Call a function; stacks of what it allocates end here."""
    return function(*args, **kwargs)
