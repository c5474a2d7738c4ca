"""The context that ``Memory.on`` returns. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, NoReturn, TypeVar

from cudamem_testing.model.entered import NotEnteredError

M = TypeVar("M")


class Measuring(Generic[M]):
    """What ``Memory.on`` returns: a context that gives the memory. Nothing else works before it is entered."""

    def __init__(self, context: AbstractContextManager[M], device: object) -> None:
        self._context = context
        self._call = f"Memory.on({device!r})"

    def __enter__(self) -> M:
        return self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        __tracebackhide__ = True
        return self._context.__exit__(kind, error, traceback)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # the interpreter and notebooks ask for these
            raise AttributeError(f"{self._call} has no attribute {name!r}")
        raise NotEnteredError(f"{self._call} was not entered: write `with {self._call} as memory:`, then memory.{name}")

    def __call__(self, *_: object) -> NoReturn:
        """Refuse to be a decorator: the function would not get the memory.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"this is not a decorator: write `with {self._call} as memory:` inside the function")

    def __repr__(self) -> str:
        return f"<{self._call}, a context>"
