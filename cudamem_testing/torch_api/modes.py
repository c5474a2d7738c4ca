"""Wraps torch's two kinds of modes, to intercept calls of Python functions and of operators.

Importing this module imports torch. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from cudamem_testing.safe_access import contents, is_a
from cudamem_testing.torch_api.dispatch import DispatchMode, operator_name
from cudamem_testing.torch_api.running import node_function

_current_node = node_function()


class OperatorWatcher(Protocol):
    """Makes each call of an operator."""

    def operator(self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator."""


class Watcher(OperatorWatcher, Protocol):
    """Makes each call."""

    def function(self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a Python function."""


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


class _Operators(DispatchMode):
    def __init__(self, watcher: OperatorWatcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watcher = watcher

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._watcher.operator(operator_name(func), func, args, kwargs or {})


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Both modes: the watcher makes every call of a function and of an operator."""
    with _Functions(watcher), _Operators(watcher):
        yield


class Noter(Protocol):
    """Is notified of each operator."""

    def called(self, name: str, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        """Called before an operator, with its input tensors and those that it changes."""

    def returned(self, name: str, outputs: Sequence[torch.Tensor]) -> None:
        """Called after an operator, with its output tensors."""


class _Noting:
    """Calls each operator, with a notification before and after."""

    def __init__(self, noter: Noter) -> None:
        self._noter = noter

    def operator(self, name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        written = [*tensors(_written(func, args, kwargs))]
        self._noter.called(name, [*tensors((*args, *kwargs.values()))], written)
        result = func(*args, **kwargs)
        self._noter.returned(name, [*tensors((result,))])
        return result


class _Noted(_Operators):
    """A separate name for the notifying mode."""


def noted(noter: Noter) -> DispatchMode:
    """A mode that notifies before and after each operator."""
    return _Noted(_Noting(noter))


def tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """Tensors among values, and in lists, tuples and dicts among them."""
    pending = [*values][::-1]
    while pending:
        value = pending.pop()
        if is_a(value, torch.Tensor):
            yield value
        else:
            pending += contents(value)[::-1]


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operator changes, by its schema."""
    schema = getattr(func, "_schema", None)  # higher-order operators have none
    if schema is None:
        return []
    found = []
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return found


def current_node() -> str:
    """The autograd node whose backward is running, such as ``ProdBackward0``; empty outside any."""
    node = _current_node()
    return "" if node is None else str(node.name())
