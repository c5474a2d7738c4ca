"""A dispatch mode that sees every operator: below autograd, above the kernels; also in backward, on any thread.

The code that runs at every operator is here and in :mod:`places`: two notes, the place, one tuple.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from cudamem_testing.operators.places import ModuleCall
from cudamem_testing.torch_api.dispatch import DispatchMode

Taken = tuple[int, int, Any, ModuleCall]
"""Notes before and after an operator, the operator, where it ran."""
See = Callable[[object, tuple[object, ...]], None]


class OperatorMode(DispatchMode):
    """Records counters around every operator, also around one that raises.

    Work inside an operator, in kernels or in the ``__torch_dispatch__`` of a tensor class, belongs to it.
    """

    def __init__(self, note: Callable[[], int], place: Callable[[FrameType], ModuleCall]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note
        self._place = place
        self.taken: list[Taken] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = self._note()
        try:
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            self.taken.append((before, self._note(), func, self._place(sys._getframe(1))))


class StorageMode(OperatorMode):
    """The same, and passes inputs and outputs to journals of storages."""

    def __init__(self, note: Callable[[], int], place: Callable[[FrameType], ModuleCall], see: Sequence[See]) -> None:
        super().__init__(note, place)
        self._see = see

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = self._note()
        try:
            result = func(*args, **(kwargs or {}))
            for see in self._see:
                see(result, (args, kwargs))
            return result
        finally:
            self.taken.append((before, self._note(), func, self._place(sys._getframe(1))))
