"""Reads from optimizers and gradients what torch's profiler does not record of them.

The profiler notes the tensors that an optimizer has for each parameter, not those in lists and tables of it (L-BFGS
keeps its history so), and the gradient of a parameter only where it has its own storage, which a sparse one does not.
Both are read from the objects themselves, before and after a recording: from optimizers among the arguments of the
function that is recorded, and those that the function itself refers to. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from cudamem_testing import safe_access
from cudamem_testing.objects.tensors import is_tensor
from cudamem_testing.torch_api.tensors import parts, quiet

_STATE = "state"
_FUNCTIONS = 2
"""Functions from the one that is recorded to the one that names an optimizer."""


def optimizers_in(*values: object) -> Iterator[Any]:
    """Optimizers among some values, in lists, tuples and dicts of them, and those that functions among them use.

    A function that another one uses is searched only for what it names itself, so that no library is searched.
    """
    pending: list[tuple[object, int]] = [(value, _FUNCTIONS) for value in values]
    seen: set[int] = set()
    while pending:
        value, functions = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        inside: Iterable[object] = ()
        if safe_access.is_a(value, torch.optim.Optimizer):
            yield value
        elif type(value) is list or type(value) is tuple:
            inside = [*value]
        elif type(value) is dict:
            inside = [one for _, one in safe_access.items(value)]
        elif type(value) is types.FunctionType and functions:
            inside, functions = [*_used_by(value)], functions - 1
        elif type(value) is types.MethodType:
            inside = [
                value.__func__,
                *(one for _, one in safe_access.items(safe_access.instance_dict(value.__self__) or {})),
            ]
        pending += [(one, functions) for one in inside]


def _used_by(function: types.FunctionType) -> Iterator[object]:
    """What a function's code names: globals, and variables of the functions around it; functions among them as well."""
    names = function.__code__.co_names
    yield from (value for name in names if (value := safe_access.get(function.__globals__, name)) is not None)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue


def state_of(optimizer: object) -> Iterator[object]:
    """The tensors in the state of an optimizer, however deep in lists, tuples and dicts."""
    pending = [safe_access.get(safe_access.instance_dict(optimizer), _STATE)]
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_tensor(value):
            yield value
        elif safe_access.is_one_of(value, list, tuple):
            pending += list.__iter__(value) if safe_access.is_a(value, list) else tuple.__iter__(value)  # type: ignore[arg-type]
        elif safe_access.is_a(value, dict):
            pending += [one for _, one in safe_access.items(value)]


def parts_of(tensors: Iterable[object]) -> Iterator[object]:
    """Tensors, those without a storage of their own by their parts: indices and values of a sparse one."""
    for tensor in tensors:
        with quiet():
            inside = [part for _, part in parts(tensor)]
        yield from inside or [tensor]
