"""torch's two kinds of modes: functions of the Python interface and operators, watched while they are called.

Importing this module imports torch. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode


class Watcher(Protocol):
    """Who is asked to make each call."""

    def function(self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function of the Python interface."""

    def operator(self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator."""


class _Functions(TorchFunctionMode):
    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher
        self._names: dict[object, str] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = resolve_name(func) or f"torch.{getattr(func, '__name__', func)}"
        return self._watcher.function(name, func, args, kwargs or {})


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watcher = watcher

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._watcher.operator(func.name().partition(".")[0], func, args, kwargs or {})


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Both modes: the watcher makes every call of a function and of an operator."""
    with _Functions(watcher), _Operators(watcher):
        yield


class _Last(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the name of the operator that was called last."""

    supports_higher_order_operators = True

    def __init__(self, note: Callable[[str, Sequence[Any], Mapping[str, Any], Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._note(func.name().partition(".")[0], args, kwargs or {}, None)
        result = func(*args, **(kwargs or {}))
        self._note(func.name().partition(".")[0], (), {}, result)
        return result


def operators_seen(note: Callable[[str, Sequence[Any], Mapping[str, Any], Any], None]) -> TorchDispatchMode:
    """A mode that tells each operator with its arguments before the call, and with its result after it."""
    return _Last(note)


def current_node() -> str:
    """The autograd node whose backward is at work, such as ``ProdBackward0``; empty outside of any."""
    node = getattr(torch._C, "_current_autograd_node", lambda: None)()
    return "" if node is None else str(node.name())
