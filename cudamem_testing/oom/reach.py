"""Hooks, flags and locks that a step reaches and must leave as it found them.

Importing this module imports torch. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from cudamem_testing.originals import Original
from cudamem_testing.safe_access import is_a, is_one_of, referents
from cudamem_testing.torch_api.ambient import Setting

MOST = 50_000
#: Seconds in which another thread may give back a lock that it holds.
PATIENCE = 0.2
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class Reached:
    """The modules and locks that a step reaches: through its closure, its object, the globals that it names."""

    def __init__(self, step: Callable[[], object], state: Mapping[str, object]) -> None:
        self._modules: dict[str, torch.nn.Module] = {}
        self._locks: dict[str, Any] = {}
        known: set[int] = set()
        for name, one in _walk(step, state):
            if is_one_of(one, *_LOCKS):
                self._locks.setdefault(name, one)
            elif is_a(one, torch.nn.Module) and id(one) not in known:  # breadth first: never inside one that follows
                known.update(map(id, one.modules()))
                self._modules.setdefault(name, one)

    def settings(self) -> Iterator[Setting]:
        """How many hooks modules and their parameters have, whether they train, and whether locks are held."""
        for name, module in self._modules.items():
            for inner, one in module.named_modules(prefix=name):
                count = sum(len(getattr(one, kind, None) or ()) for kind in _HOOKS)
                yield Setting(f"number of hooks of {inner}", count)
                yield Setting(f"{inner}.training", one.training)
            for inner, parameter in module.named_parameters(prefix=name):
                count = sum(len(getattr(parameter, kind, None) or ()) for kind in _TENSOR_HOOKS)
                yield Setting(f"number of hooks of {inner}", count)
                yield Setting(f"{inner}.requires_grad", parameter.requires_grad, parameter.requires_grad_)
        for name, lock in self._locks.items():
            yield Setting(f"lock {name}", "held" if _is_held(lock) else "free", partial(_free, lock))


def _is_held(lock: Any) -> bool:
    """Whether a lock stays held for a while: another thread may hold it for a moment."""
    end = Original.monotonic() + PATIENCE
    while _held_now(lock):
        if Original.monotonic() > end:
            return True
        Original.sleep(0.001)
    return False


def _held_now(lock: Any) -> bool:
    locked = getattr(lock, "locked", None)  # RLock has none before Python 3.14
    return bool(lock._is_owned() if locked is None else locked())


def _free(lock: Any, earlier: object) -> None:
    while _held_now(lock):
        lock.release()


def _walk(step: Callable[[], object], state: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Objects below a step and named state, breadth first, each with the name under which it was met."""
    waiting: list[tuple[str, object]] = [*state.items(), *_of_function("step", step)]
    seen: set[int] = set()
    for name, one in waiting:  # grows below
        if id(one) in seen or len(seen) > MOST:
            continue
        seen.add(id(one))
        yield name, one
        if is_one_of(one, *_LOCKS, torch.Tensor, type, ModuleType, BuiltinFunctionType, CodeType):
            continue
        if is_one_of(one, FunctionType, MethodType):
            waiting += _of_function(name, one)
        elif is_a(one, dict):
            waiting += [(str(key) if is_a(key, str) else name, value) for key, value in _items(one)]
        elif not is_one_of(one, str, bytes, int, float):
            waiting += [(name, value) for value in referents(one)]


def _items(mapping: dict[object, object]) -> Iterable[tuple[object, object]]:
    return tuple(dict.items(mapping))


def _of_function(name: str, function: object) -> Iterator[tuple[str, object]]:
    """What a function's code can use: its object, its closure, its defaults, the globals that it names."""
    if is_a(function, MethodType):
        yield name, function.__self__
        function = function.__func__
    if not is_a(function, FunctionType):
        yield name, function
        return
    names = function.__code__.co_freevars
    for inner, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            yield inner, cell.cell_contents
        except ValueError:  # empty
            continue
    yield from ((name, value) for value in function.__defaults__ or ())
    namespace = function.__globals__
    for inner in _named(function.__code__):
        if inner in namespace:
            value = namespace[inner]
            if is_a(value, ModuleType):
                continue
            yield inner, value


def _named(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if is_a(inner, CodeType):
            yield from _named(inner)
