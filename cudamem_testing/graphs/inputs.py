"""Static inputs: the tensors that a graph reads, and which inputs may be copied into them. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cudamem_testing.graphs.differs import equal
from cudamem_testing.safe_access import is_a, is_plain, type_name
from cudamem_testing.torch_api.trees import flatten, unflatten

#: Differences that one message names.
MOST = 5


class InputError(ValueError):
    """Inputs that do not match those of the capture; each difference has a line."""


class StaticInputs:
    """The arguments of a capture: tensors on the graph's device are copied, everything else is kept as given.

    A tensor that is passed twice is one tensor here too.
    """

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any], device: str) -> None:
        leaves, self._spec = flatten((tuple(args), kwargs))
        copies: dict[int, torch.Tensor] = {}
        self.leaves: list[tuple[str, Any]] = []
        for path, leaf in leaves:
            if is_a(leaf, torch.Tensor) and str(leaf.device) == device:
                leaf = copies.setdefault(id(leaf), fresh_copy(leaf))
            self.leaves.append((_named(path), leaf))
        self._copied = {id(copy) for copy in copies.values()}

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the function."""
        args, kwargs = unflatten([leaf for _, leaf in self.leaves], self._spec)
        return args, kwargs

    @property
    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The static tensors, by name."""
        return [(name, leaf) for name, leaf in self.leaves if id(leaf) in self._copied]

    def copy_in(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Write new values into the static tensors.

        Raises:
            InputError: if structure, shapes, types, devices or values of other arguments differ from the capture.
        """
        given = self._checked(args, kwargs)
        with torch.no_grad():
            for (_, static), (_, new) in zip(self.leaves, given, strict=True):
                if id(static) in self._copied and static is not new:
                    static.copy_(new)

    def fresh(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same inputs as copies, for a call outside the graph.

        Raises:
            InputError: as for ``copy_in``.
        """
        copies: dict[int, torch.Tensor] = {}
        leaves = []
        for (_, static), (_, new) in zip(self.leaves, self._checked(args, kwargs), strict=True):
            leaves.append(copies.setdefault(id(static), fresh_copy(new)) if id(static) in self._copied else new)
        fresh_args, fresh_kwargs = unflatten(leaves, self._spec)
        return fresh_args, fresh_kwargs

    def named(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """The leaves of other arguments, by name."""
        return _all(flatten((tuple(args), kwargs))[0])

    def _checked(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        given, spec = flatten((tuple(args), kwargs))
        if [path for path, _ in given] != [path for path, _ in flatten(self.arguments)[0]] or spec != self._spec:
            wanted, got = (", ".join(name for name, _ in leaves) or "nothing" for leaves in (self.leaves, _all(given)))
            raise InputError(f"the inputs differ in structure from those of the capture: {got}; captured: {wanted}")
        pairs = zip(self.leaves, given, strict=True)
        wrong = [line for (name, static), (_, new) in pairs if (line := self._mismatch(name, static, new))]
        if wrong:
            more = [f"... and {len(wrong) - MOST} more"] if len(wrong) > MOST else []
            raise InputError("\n".join(("the inputs do not fit those of the capture:", *wrong[:MOST], *more)))
        return given

    def _mismatch(self, name: str, static: object, new: object) -> str | None:
        if not is_a(static, torch.Tensor) or not is_a(new, torch.Tensor):
            if type(static) is type(new) and equal(static, new):
                return None
            return f"   {name}: {_shown(new)}, captured with {_shown(static)}, which every replay uses"
        facts = (
            ("shape", [*static.shape], [*new.shape]),
            ("dtype", static.dtype, new.dtype),
            ("device", static.device, new.device),
            ("layout", static.layout, new.layout),
        )
        wrong = [f"{fact} {got}, captured with {wanted}" for fact, wanted, got in facts if wanted != got]
        return f"   {name}: {'; '.join(wrong)}" if wrong else None


def fresh_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the values that requires grad if the tensor does."""
    with torch.inference_mode(False):  # tensors made in inference mode cannot be written outside it
        copy = tensor.detach().clone()
        return copy.requires_grad_() if tensor.requires_grad else copy


def _all(leaves: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(_named(path), leaf) for path, leaf in leaves]


def _named(path: str) -> str:
    """``args[0]['mask']`` for ``[0][0]['mask']``, ``mask`` for a keyword argument ``[1]['mask']``."""
    if path.startswith("[0]"):
        return f"args{path[3:]}"
    inner = path[3:]
    head, _, rest = inner.partition("]")
    return head.strip("['\"") + rest


def _shown(value: object) -> str:
    if is_plain(value):
        return repr(value)[:60]
    return f"another {type_name(value)}" if not is_a(value, torch.Tensor) else "a tensor"
