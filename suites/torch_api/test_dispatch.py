"""Dispatch modes: what they import and keep, and that torch's compiler leaves them alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODE = """
import gc, sys, weakref
import torch
from torch import nn
from cudamem_testing.torch_api.dispatch import DispatchMode, operator_name

class Names(DispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(operator_name(func))
        return func(*args, **(kwargs or {}))
"""
FIRST = """
def program():
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    with Names() as mode:
        layer(x).sum().backward()
    assert "aten::addmm" in mode.names
    return weakref.ref(layer)

gc.disable()
before = {*sys.modules}
layer = program()
print(isinstance(Names(), Names), layer(), sorted(name for name in {*sys.modules} - before if "_dynamo" in name))
"""
CONDITION = """
from cudamem_testing.recorders.dispatch_trap import counting
from cudamem_testing.recorders.base import Taken
from cudamem_testing.torch_api.calls import DispatchedCalls

mode, calls, trap = Names(), DispatchedCalls(), counting(lambda: Taken(0, 0))
with mode, calls:
    for _ in range(2):
        torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(3),))
        torch._dynamo.reset()
    torch.compile(lambda x: x.relu(), backend="eager")(torch.ones(4))
trap.lift()
print(mode.names.count("cond"), dict(torch._dynamo.utils.counters["frames"]))
"""
COMPILED = """
function = torch.compile(lambda x: x.relu() + 1, backend="eager")
with Names() as mode:
    function(torch.ones(4))
print(mode.names, dict(torch._dynamo.utils.counters["frames"]))
"""


def printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", MODE + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.subprocess
def test_the_first_operator_imports_and_keeps_nothing() -> None:
    assert printed(FIRST) == "True None []\n"


@pytest.mark.subprocess
@pytest.mark.slow
def test_a_condition_in_modes_compiles_none_of_them() -> None:
    """A higher-order operator compiles its branches, and imports the compiler."""
    assert printed(CONDITION) == "2 {}\n"


@pytest.mark.subprocess
@pytest.mark.slow
@pytest.mark.parametrize("imported", ["", "import torch._dynamo\n"])
def test_the_code_of_a_mode_is_not_compiled(imported: str) -> None:
    assert printed(imported + COMPILED) == "['aten::ones', 'aten::relu', 'aten::add'] {}\n"
