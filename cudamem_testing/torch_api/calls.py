"""Records the calls of torch's dispatcher: inputs and outputs of each operator, which the profiler does not record.

Importing this module imports torch. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils import _pytree

from cudamem_testing.originals import Original
from cudamem_testing.safe_access import is_a
from cudamem_testing.torch_api.dispatch import DispatchMode
from cudamem_testing.torch_api.tensors import field, quiet, storage

TensorAddress: TypeAlias = tuple[int, int]
"""Address of a tensor's C++ object, as the profiler's ``impl_ptr``, and of its memory."""


class Call(NamedTuple):
    """One call of an operator; times are nanoseconds on the profiler's clock, which is the system's."""

    name: str
    """With its overload: ``aten::mul.Tensor``."""
    called: int
    returned: int
    inputs: tuple[TensorAddress, ...]
    outputs: tuple[TensorAddress, ...]


class DispatchedCalls(DispatchMode):
    """Records the calls of operators on tensors with memory, and keeps no tensor alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        inputs = _addresses((*args, *(kwargs or {}).values()))
        called = Original.time_ns()
        result = func(*args, **(kwargs or {}))
        returned = Original.time_ns()
        outputs = _addresses((result,))
        if (inputs or outputs) and "_record_function_enter" not in str(func.name()):
            self.calls.append(Call(str(func.name()), called, returned, inputs, outputs))
        return result


def _addresses(values: Iterable[object]) -> tuple[TensorAddress, ...]:
    found = []
    with quiet():
        for leaf in _pytree.tree_leaves([*values]):
            place = storage(leaf) if is_a(leaf, torch.Tensor) else None
            if place is not None and place[2]:
                found.append((int(field(leaf, "_cdata")), place[1]))
    return tuple(found)
