"""Guards: the only place that changes process-wide state, and that restores it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
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


class _Switch:
    """Calls the replacement while it is active, and the original afterwards."""

    def __init__(self, original: Function, replacement: Function) -> None:
        self.__wrapped__ = original
        self.__name__ = getattr(original, "__name__", "function")
        self.__doc__ = original.__doc__
        self.active = True
        self._replacement = replacement

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._replacement if self.active else self.__wrapped__)(*args, **kwargs)
