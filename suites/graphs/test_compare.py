"""Replays against calls: what is overwritten in between, and with what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cudamem_testing.graphs import GraphCapture, GraphError
from cudamem_testing.graphs.compare import MOST, Comparison, Difference
from suites.graphs.fake import FakeBackend, FakeGraph


class Shows(FakeBackend):
    """Notes what every tensor on its tape holds before each replay."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[dict[str, list[object]]] = []
        self.watched: dict[str, torch.Tensor] = {}

    def replay(self, graph: FakeGraph) -> None:
        self.held.append({name: tensor.tolist() for name, tensor in self.watched.items()})
        super().replay(graph)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Shows:
    monkeypatch.setattr("cudamem_testing.graphs.capture.collect_garbage", lambda: None)
    return Shows()


@pytest.fixture
def graphs(backend: Shows) -> Iterator[GraphCapture]:
    made = GraphCapture(backend)
    yield made
    made.close()


def test_integers_become_an_index_that_is_safe(graphs: GraphCapture, backend: Shows) -> None:
    def step(x: torch.Tensor, at: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"x": x[at] * 2, "at": at + 1, "mask": ~mask}

    captured = graphs(step, torch.ones(3), torch.tensor([2]), torch.tensor([True]))
    backend.watched = dict(captured.outputs)
    captured.assert_matches_eager(replays=1)
    first, poisoned = backend.held
    assert first == {"x": [2.0], "at": [3], "mask": [False]}
    assert str(poisoned) == "{'x': [nan], 'at': [0], 'mask': [True]}"


def test_a_replay_never_starts_from_overwritten_inputs(graphs: GraphCapture, backend: Shows) -> None:
    """Also where the inputs to compare with are the static ones."""
    captured = graphs(lambda x: x * 2, torch.tensor([3, 4]))
    backend.watched = dict(captured.inputs.tensors)
    static = captured.inputs.arguments[0]
    captured.assert_matches_eager([static, static], replays=2)
    assert backend.held == [{"args[0]": [3, 4]}] * 5


def test_memory_that_the_graph_did_not_make_is_left_alone(graphs: GraphCapture) -> None:
    """No operator takes the table, so nothing but its memory tells that it is not the graph's."""
    table = torch.arange(3)
    captured = graphs(lambda x: (x * 2, table), torch.ones(3))
    captured.assert_matches_eager()
    assert table.tolist() == [0, 1, 2]


def test_the_graph_runs_once_before_the_function_is_called(graphs: GraphCapture, backend: Shows) -> None:
    """A card runs nothing during a capture, so what the function left elsewhere then has no values yet."""
    order: list[str] = []
    captured = graphs(lambda x: (order.append("call"), x * 2)[1], torch.ones(3))
    replay = backend.replay
    backend.replay = lambda graph: (order.append("replay"), replay(graph))  # type: ignore[method-assign, assignment, func-returns-value]
    order.clear()
    captured.assert_matches_eager(replays=1)
    assert order == ["replay", "call", "replay"]


def test_an_integer_that_no_replay_writes_shows(graphs: GraphCapture, backend: Shows) -> None:
    captured = graphs(lambda x: x + 1, torch.tensor([3, 4]))
    backend.skipped = {"aten::add"}
    with pytest.raises(GraphError, match=r"inputs 1, replay 1: output: Mismatched elements: 2 / 2"):
        captured.assert_matches_eager(replays=1)


def test_values_and_replays_are_counted_apart() -> None:
    differences = [
        Difference(inputs, replay, f"output{at}", "off") for inputs, replay in ((1, 1), (2, 3)) for at in "abc"
    ]
    lines = str(Comparison(tuple(differences), 6)).splitlines()
    assert lines[0] == "the graph differs from eager in 6 values, in 2 of 6 replays:"
    assert lines[-2:] == ["inputs 2, replay 3: outputb: off", f"... and {6 - MOST} more"]
    assert str(Comparison((), 1)) == "1 replay equal to eager"
    assert str(Comparison((), 3)) == "3 replays equal to eager"
