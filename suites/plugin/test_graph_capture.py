"""The fixture graph_capture in a run: the lint works everywhere, a capture without a card skips its test."""

from __future__ import annotations

import pytest

from suites.plugin.inner import run_inner

FILE = """
    import torch


    def test_lint(graph_capture):
        graph_capture.check(lambda x: x * 2, torch.ones(3)).assert_clean()


    def test_fault(graph_capture):
        graph_capture.check(lambda x: x.item(), torch.ones(())).assert_clean()


    def test_capture(graph_capture):
        graph_capture(lambda x: x * 2, torch.ones(3))
        raise AssertionError("was not skipped")


    def test_callables(graph_capture):
        graph_capture.callables(torch.nn.Linear(2, 2), (torch.ones(2),))
        raise AssertionError("was not skipped")
"""


def test_in_a_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    inner = run_inner(pytester, FILE, "-rs")
    assert inner.last == "1 failed, 1 passed, 2 skipped"
    assert inner.record is None  # nothing is measured for it
    reason = "CUDA graphs need a CUDA device, and torch sees none"
    places = [line.partition(": ") for line in inner.lines if line.startswith("SKIPPED")]
    assert [(place.partition(" test_it.py:")[0], why) for place, _, why in places] == [("SKIPPED [1]", reason)] * 2
    (fault,) = [line for line in inner.lines if "in test_fault.<lambda>: " in line]
    place, _, source = fault.partition(": ")
    assert place == "E       test_it.py:9 in test_fault.<lambda>"
    assert source == "graph_capture.check(lambda x: x.item(), torch.ones(())).assert_clean()"
