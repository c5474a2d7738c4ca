"""The data flow as lifetimes: when each tensor begins and ends, and what is said of it."""

from __future__ import annotations

import pytest
import torch

from cudamem_testing import memory_profile
from cudamem_testing.model.stacks import Locator
from cudamem_testing.trace.categories import categories
from cudamem_testing.trace.lifetimes import lifetimes
from suites.trace.test_draw import example

HERE = Locator("/nowhere")


def test_bars_of_a_small_flow() -> None:
    found = lifetimes(categories(example(x=1, out=5)), HERE)
    assert [step.label for step in found.steps] == ["aten::mul", "aten::add_", "SinBackward0", "aten::neg_", "[memory]"]
    assert [(bar.label, bar.first, bar.last, bar.size) for bar in found.bars] == [
        ("x (T0)", -1, 5, 16),
        ("T1", -1, 5, 16),
        ("T4", 0, 1, 8),
        ("T2", 0, 4, 16),
        ("out (T3)", 2, 5, 1024),
    ]
    assert [bar.detail.splitlines() for bar in found.bars[2:]] == [
        ["made by aten::mul", "lives only inside it"],
        ["made by aten::mul", "taken by aten::add_, SinBackward0", "freed in [memory]"],
        ["made by SinBackward0", "taken by aten::neg_", "not freed in the recording"],
    ]


def test_only_the_largest_are_shown_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudamem_testing.trace.lifetimes.MOST", 2)
    found = lifetimes(categories(example()), HERE)
    assert [bar.size for bar in found.bars] == [16, 1024]
    assert found.notes[0] == "3 tensors of at most 16 B left out"


def test_calls_of_modules_are_distinguished() -> None:
    layer = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(layer, layer)
    profile = memory_profile(lambda model, x: model(x).sum().backward(), model, torch.ones(2, 4))
    steps = lifetimes(categories(profile.data_flow()), HERE).steps
    calls = list(dict.fromkeys(call for step in steps for call in step.modules))
    assert [name for name, _ in calls] == ["Sequential", "Linear", "Linear", "backward pass"]
    assert profile.data_flow().html().startswith("<!DOCTYPE html>")
