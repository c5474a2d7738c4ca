"""Every assertion fails on a planted fault and passes on its control: on a backend without a card, and on a card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from cudamem_testing.graphs.session import GraphCapture
from fixtures.zoo.graphs import CASES, GraphCase
from suites.graphs.fake import FakeBackend

ROOT = str(Path(__file__).parents[2])
ANYWHERE = [case for case in CASES.values() if case.needs != "cuda"]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphCapture]:
    torch.manual_seed(0)
    for module in ("capture", "callables"):  # a collection takes longer than everything else here
        monkeypatch.setattr(f"cudamem_testing.graphs.{module}.collect_garbage", lambda: None)
    made = GraphCapture(FakeBackend(), root=ROOT, owner="this test")
    yield made
    made.close()


@pytest.mark.parametrize("case", ANYWHERE, ids=lambda case: case.key)
def test_a_fault_is_found(case: GraphCase, graphs: GraphCapture) -> None:
    with pytest.raises(Exception, match=r".") as failure:
        case.body(graphs, "cpu")
    assert case.expect in str(failure.value)


@pytest.mark.parametrize("case", ANYWHERE, ids=lambda case: case.key)
def test_its_control_passes(case: GraphCase, graphs: GraphCapture) -> None:
    assert case.controls
    for control in case.controls:
        control(graphs, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_fault_is_found_on_a_card(case: GraphCase, figure: Callable[[str], None]) -> None:
    made = GraphCapture(root=ROOT)
    try:
        with pytest.raises(Exception, match=r".") as failure:
            case.body(made, "cuda:0")
        assert case.expect in str(failure.value)
        figure("zoo of captured graphs: fault found")
    finally:
        made.close()


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_its_control_passes_on_a_card(case: GraphCase, figure: Callable[[str], None]) -> None:
    made = GraphCapture(root=ROOT)
    try:
        for control in case.controls:
            control(made, "cuda:0")
        figure("zoo of captured graphs: control of a fault passes")
    finally:
        made.close()


def test_there_are_enough_pairs_for_a_card() -> None:
    assert len(CASES) >= 20
    assert {"G2", "G4", "G5", "G6", "G7"} <= {*CASES}
