"""Dispatch modes, which see every operator.

Importing this module imports torch.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DispatchMode", "PlainDispatchMode", "operator_name"]


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """A mode that also receives higher-order operators (``cond``)."""

    supports_higher_order_operators = True

    def __enter__(self) -> Self:
        if not hasattr(TorchDispatchMode, "supports_higher_order_operators"):
            self._rule_for_higher_order_operators()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def _rule_for_higher_order_operators(self) -> None:
        """Up to torch 2.7 such an operator raises in a mode without a rule for it. Other modes are not affected."""
        mode = type(self)
        for operator in torch._ops._higher_order_ops.values():
            operator.python_key_table.setdefault(mode, functools.partial(_called, operator))


class PlainDispatchMode(DispatchMode):  # type: ignore[no-untyped-call]  # the same
    """The same without torch's wrapper, which imports its compiler at the first operator: seconds for one run."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def _called(operator: Any, mode: TorchDispatchMode, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(operator, (), args, kwargs)  # type: ignore[no-untyped-call]


def operator_name(func: Any) -> str:
    """``aten::add`` of ``aten.add.Tensor``; higher-order operators have a plain name."""
    return str(func.name()).partition(".")[0]
