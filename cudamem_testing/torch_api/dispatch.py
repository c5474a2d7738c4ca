"""Dispatch modes, which see every operator.

Importing this module imports torch.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DispatchMode", "operator_name"]


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """A mode that also receives higher-order operators (``cond``), and that does not import torch's compiler.

    Torch wraps a mode so that its code is not compiled. The wrapper imports the compiler at the first operator, which
    takes a second, and the frames of that moment live until a collection, with what they hold. As long as the compiler
    is not imported, the mode needs no wrapper.
    """

    supports_higher_order_operators = True

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        mode: type[Self] = cls if "torch._dynamo" in sys.modules else _unwrapped(cls)  # type: ignore[arg-type]
        return super().__new__(mode)

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


@functools.cache
def _unwrapped(mode: type[Any]) -> Any:
    """The mode without torch's wrapper around its ``__torch_dispatch__``."""
    own = getattr(mode.__torch_dispatch__, "__wrapped__", None)
    if own is None:
        return mode
    without = {"__torch_dispatch__": own, "_should_skip_dynamo": classmethod(lambda cls: False)}
    return type(mode.__name__, (mode,), without)


def _called(operator: Any, mode: TorchDispatchMode, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(operator, (), args, kwargs)  # type: ignore[no-untyped-call]


def operator_name(func: Any) -> str:
    """``aten::add`` of ``aten.add.Tensor``; higher-order operators have a plain name."""
    return str(func.name()).partition(".")[0]
