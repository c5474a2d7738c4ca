"""The profiler of this torch, and one without its older sibling."""

from __future__ import annotations

import sys

import pytest
import torch

from cudamem_testing import torch_api


def test_the_profiler_of_this_torch_can_be_used() -> None:
    assert torch_api.profiler_modules() == (torch.autograd.profiler, sys.modules["torch.autograd.profiler_legacy"])


def test_a_torch_without_the_older_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.autograd.profiler_legacy._enable_profiler_legacy")
    assert torch_api.profiler_modules() is None


def test_the_classes_of_events_are_those_of_a_profile() -> None:
    types = torch_api.event_types()
    assert not torch_api.profiler_is_running()
    profiler = torch_api.new_profiler()
    assert torch_api.finished_results(profiler) is None
    with profiler:
        assert torch_api.profiler_is_running()
        torch.ones(2).add_(1)
    pending = [*torch_api.event_tree(torch_api.finished_results(profiler))]
    seen = set()
    while pending:
        event = pending.pop()
        seen.add(type(event.extra_fields))
        pending += event.children
    assert {types.operator, types.allocation, types.python_call, types.builtin_call} <= seen


def test_a_profiler_that_was_left_running_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_api.disable_profiler()  # nothing runs: nothing happens
    monkeypatch.setattr(torch.autograd.profiler, "_is_profiler_enabled", False)  # torch's own note, put back afterwards
    profiler = torch_api.new_profiler()
    profiler.start()
    torch_api.disable_profiler()
    assert not torch._C._autograd._profiler_enabled()
