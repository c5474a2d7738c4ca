"""The lint with tensors of a card, which say themselves where they are; here others stand for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from cudamem_testing.graphs.lint import check
from cudamem_testing.graphs.sides import Side, Sides


class Card(Sides):
    """As on a card, where float64 stands for the host and everything else for the card."""

    def __init__(self, **_: Any) -> None:
        super().__init__(real=True)

    def of(self, tensor: torch.Tensor) -> Side:
        return Side.HOST if tensor.dtype is torch.float64 else Side.DEVICE


def test_on_a_card_tensors_report_their_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudamem_testing.graphs.lint.Sides", Card)
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("waited"))

    def run(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        y = x.to(torch.float64)
        z = y.to(torch.float32) + torch.ones(1)
        torch.cuda.synchronize()
        if table.sum().item() > 0:
            z = z + x.new_tensor([2.0])
        return z * table

    report = check(run, torch.ones(3), torch.ones(3).double())
    assert [f"{finding.rule.value}: {finding.operation}" for finding in report.findings] == [
        "host read: Tensor.to() to the host",
        "host-device copy: Tensor.to() to the device",
        "synchronize: torch.cuda.synchronize()",
        "host-device copy: Tensor.new_tensor() of host data, to the device",
        "wrong device: Tensor.mul()",
    ]
    assert waited == ["waited"]


def test_on_a_card_lists_seeds_and_tensors_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudamem_testing.graphs.lint.Sides", Card)
    inner = [torch.ones(4)]

    def run(x: torch.Tensor, loader: Iterator[torch.Tensor]) -> torch.Tensor:
        y = x[[0, 1, 2]] + x[np.array([0, 1, 2])] + x[1:, ...].sum()
        y[[0, 1]] = 2.0
        y[range(2)] = 3.0
        z = (torch.ones(4) + x.clone()) * x[[True, False, True, False]].sum()
        torch.manual_seed(3)
        return z[None, 0:3] + next(loader)[0] + y

    report = check(run, torch.ones(4), iter(inner))
    assert [f"{finding.rule.value}: {finding.operation}, {finding.times}" for finding in report.findings] == [
        "host-device copy: x[indices of the host], 2",
        "host-device copy: x[indices of the host] = ..., 1",
        "host-device copy: x[indices of the host] = ..., 1",
        "data-dependent shape: x[mask], 1",
        "generator: torch.manual_seed(), 1",
        "outside tensor: a tensor that no variable of the function refers to, 1",
    ]
