"""A snapshot imports nothing: torch would import its compiler to put frames into words."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from cudamem_testing import torch_api
from cudamem_testing.recorders import history

FRAMES = """
import sys, torch
from torch.utils._traceback import CapturedTraceback
from cudamem_testing import torch_api
from cudamem_testing.recorders import history
torch_api.snapshot = lambda: CapturedTraceback.extract().summary()  # words as for the frames of a snapshot
before, lazy = set(sys.modules), set(torch._lazy_modules)
frames = history.snapshot()
print(frames[-1].name, len(set(sys.modules) - before), torch._lazy_modules == lazy)
torch_api.snapshot()
print("torch._inductor" in sys.modules)
"""


@pytest.mark.subprocess
def test_a_snapshot_imports_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", FRAMES], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout.splitlines(), done.returncode) == (["<lambda> 0 True", "True"], 0), done.stderr


@pytest.mark.parametrize(("lazy", "there"), [(None, False), (["_inductor"], False), ({"_inductor"}, True)])
def test_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch, lazy: object, there: bool) -> None:
    """Where torch has no such list, or where its compiler was imported."""
    monkeypatch.setitem(vars(torch), "_lazy_modules", lazy)
    if there:
        monkeypatch.setitem(vars(torch), "_inductor", sys)
    else:
        monkeypatch.delitem(vars(torch), "_inductor", raising=False)
    seen: list[object] = []

    def snapshot() -> torch_api.Stats:
        seen.append(vars(torch)["_lazy_modules"])
        return {}

    monkeypatch.setattr(torch_api, "snapshot", snapshot)
    assert (history.snapshot(), seen, vars(torch)["_lazy_modules"]) == ({}, [lazy], lazy)
