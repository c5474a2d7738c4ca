"""Guards: the only place that changes process-wide state, and that restores it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
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
            if getattr(owner, name, None) is switch:
                setattr(owner, name, original)


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


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """An environment variable for a while; one that the user has set stays as it is."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
