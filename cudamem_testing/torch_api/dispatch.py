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

__all__ = ["DispatchMode", "operator_name"]


def _frames_of_compiler() -> Any:
    """What tells the compiler which code to skip, without importing it; ``None`` if this torch does not have it."""
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    needed = ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
    return frames if all(hasattr(frames, name) for name in needed) else None


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """A mode that also receives higher-order operators (``cond``), and whose code torch's compiler leaves alone.

    For that torch wraps a mode, and the wrapper imports the compiler at the first operator, which takes a second; the
    frames of that moment live until a collection, with what they hold. Here the code is marked instead, if torch can.
    """

    supports_higher_order_operators = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]
        frames, own = _frames_of_compiler(), vars(cls).get("__torch_dispatch__")
        if frames is not None and own is not None:
            skip = frames._FrameAction.SKIP
            frames.set_code_exec_strategy(own.__code__, frames._FrameExecStrategy(skip, skip))  # and what it calls

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch wraps the mode."""
        return _frames_of_compiler() is None

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


def _called(operator: Any, mode: TorchDispatchMode, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(operator, (), args, kwargs)  # type: ignore[no-untyped-call]


def operator_name(func: Any) -> str:
    """``aten::add`` of ``aten.add.Tensor``; higher-order operators have a plain name."""
    return str(func.name()).partition(".")[0]
