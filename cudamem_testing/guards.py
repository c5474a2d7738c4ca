"""Guards: the only place that changes process-wide state, and that restores it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Function = Callable[..., Any]


class Patches:
    """Functions of modules that are replaced for a while.

    A replacement that somebody has meanwhile wrapped stays in the chain: the wrapper keeps working, and ours passes
    every call on untouched.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[object, str, Function, _Switch]] = []

    def replace(self, owner: object, name: str, make: Callable[[Function], Function]) -> Function | None:
        """Put ``make(original)`` in the place of ``owner.name``; the original, or ``None`` when there is none."""
        original: Function | None = getattr(owner, name, None)
        if original is None:
            return None
        switch = _Switch(original, make(original))
        self._replaced.append((owner, name, original, switch))
        setattr(owner, name, switch)
        return original

    def restore(self) -> None:
        """Take the replacements back, the last one first."""
        while self._replaced:
            owner, name, original, switch = self._replaced.pop()
            switch.active = False
            while isinstance(original, _Switch) and not original.active:
                original = original.__wrapped__  # somebody's who was restored before us
            if getattr(owner, name, None) is switch:
                setattr(owner, name, original)


def collect_garbage() -> None:
    """A full collection that leaves the collector as it was: its debug flags, and what it was told to keep frozen."""
    with thawed():
        gc.collect()


@contextmanager
def thawed() -> Iterator[None]:
    """The collector sees every object: those that somebody froze too; debug flags are off, so nothing is kept.

    Afterwards the flags are back. What is tracked by then is frozen again if anything was: the collector cannot be
    told which objects those were.
    """
    flags, frozen = gc.get_debug(), gc.get_freeze_count()
    gc.set_debug(0)
    if frozen:
        gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.freeze()
        gc.set_debug(flags)


def stand_in(function: object) -> Function | None:
    """What :class:`Patches` made of a function, while it is at work; ``None`` for any other function."""
    return function.replacement if isinstance(function, _Switch) and function.active else None


class _Switch:
    """Calls the replacement while it is active, and the original afterwards."""

    def __init__(self, original: Function, replacement: Function) -> None:
        self.__wrapped__ = original
        self.__name__ = getattr(original, "__name__", "function")
        self.__doc__ = original.__doc__
        self.active = True
        self.replacement = replacement

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.replacement if self.active else self.__wrapped__)(*args, **kwargs)
