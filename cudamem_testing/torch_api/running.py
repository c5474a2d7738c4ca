"""Finds what is running: which autograd node, which module's call. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cudamem_testing.safe_access import is_a

if TYPE_CHECKING:
    from types import CodeType


class Running(NamedTuple):
    """Functions and code objects that show where an operator runs; the code is ``None`` if torch's differs."""

    current_node: Callable[[], Any]
    """The autograd node running on this thread, or ``None``."""
    next_number: Callable[[], int]
    """The sequence number of the next node created on this thread."""
    module_call: CodeType | None
    """The function that calls a module's hooks and ``forward``; its local ``self`` is the module."""
    backward_call: CodeType | None
    """The function that runs autograd's engine."""
    step_call: CodeType | None
    """The wrapper of every optimizer's ``step``."""


def node_function() -> Callable[[], Any]:
    """A function that returns the autograd node running on this thread, or ``None`` if it is unknown."""
    return getattr(torch._C, "_current_autograd_node", lambda: None)


def running() -> Running:
    """The functions and code objects of the installed torch."""
    call = getattr(getattr(torch.nn.Module, "_call_impl", None), "__code__", None)
    if call is not None and "self" not in (*call.co_varnames, *call.co_cellvars):
        call = None
    engine = getattr(getattr(torch.autograd.graph, "_engine_run_backward", None), "__code__", None)
    wrap = getattr(torch.optim.Optimizer, "profile_hook_step", None)
    return Running(
        node_function(),
        getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0),
        call,
        engine,
        None if wrap is None else getattr(wrap(lambda self: None), "__code__", None),
    )


#: The number of nodes without an order: those that add to a parameter's gradient.
UNNUMBERED = 2**64 - 1


def node_number(node: Any) -> int:
    """The sequence number of an autograd node."""
    number: int = node._sequence_nr()
    return number


def is_fake(tensor: object) -> bool:
    """Whether a tensor is a fake one, without memory."""
    module = _fake_tensors()
    return module is not None and is_a(tensor, module.FakeTensor)


def fake_mode_is_on() -> bool:
    """Whether a fake-tensor mode is active on this thread."""
    module = _fake_tensors()
    modes = () if module is None else torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return any(isinstance(mode, module.FakeTensorMode) for mode in modes)


def _fake_tensors() -> Any:
    """The module of fake tensors; ``None`` before something has imported it, and made some."""
    return sys.modules.get("torch._subclasses.fake_tensor")
