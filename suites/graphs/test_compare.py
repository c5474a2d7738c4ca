"""Replays against calls: what is overwritten in between, and with what."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cudamem_testing.graphs.captured import GraphError
from cudamem_testing.graphs.compare import MOST, STALE, ReplayComparison, ValueDifference
from cudamem_testing.graphs.session import GraphCapture
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
    torch.manual_seed(0)
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
        ValueDifference(inputs, replay, f"output{at}", "off") for inputs, replay in ((1, 1), (2, 3)) for at in "abc"
    ]
    lines = str(ReplayComparison(tuple(differences), 6)).splitlines()
    assert lines[0] == "the graph differs from eager in 6 values, in 2 of 6 replays:"
    assert lines[-2:] == ["inputs 2, replay 3: outputb: off", f"... and {6 - MOST} more"]
    assert str(ReplayComparison((), 1)) == "1 replay equal to eager"
    assert str(ReplayComparison((), 3)) == "3 replays equal to eager"


def test_what_a_replay_does_not_write_shows(graphs: GraphCapture, backend: Shows) -> None:
    captured = graphs(lambda x: {"y": x * 2, "sum": (x * 2).sum()}, torch.ones(3))
    captured.assert_matches_eager()
    backend.skipped = {"aten::sum"}
    with pytest.raises(GraphError) as failure:
        captured.assert_matches_eager(replays=1)
    lines = str(failure.value).splitlines()
    assert lines[0] == "the graph differs from eager in 1 value, in 1 of 1 replay:"
    assert lines[1].startswith("inputs 1, replay 1: output['sum']: ")
    assert lines[2] == f"   {STALE}"


def test_frozen_random_numbers_show(graphs: GraphCapture, backend: Shows) -> None:
    captured = graphs(lambda x: torch.nn.functional.dropout(x), torch.ones(64))
    captured.assert_matches_eager(replays=4)
    backend.frozen_generator = True
    with pytest.raises(GraphError, match="its random numbers are frozen in the graph"):
        captured.assert_matches_eager(replays=2)


def test_a_returned_parameter_is_not_overwritten(graphs: GraphCapture) -> None:
    """An argument may have the name of an output: storages decide what is overwritten between replays."""
    weight = torch.arange(3.0)

    def step(*, output: torch.Tensor) -> torch.Tensor:
        output.add_(weight)
        return weight

    graphs(step, output=torch.ones(3)).assert_matches_eager()
    assert weight.tolist() == [0.0, 1.0, 2.0]


def test_comparing_leaves_everything_as_it_was(graphs: GraphCapture) -> None:
    average = torch.zeros(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        return average.add_(torch.rand(3)) + x

    captured = graphs(step, torch.ones(3))
    kept, state = average.clone(), torch.get_rng_state()
    result = captured.assert_matches_eager([torch.ones(3), torch.zeros(3)], replays=2)
    assert (result.replays, str(result)) == (4, "4 replays equal to eager")
    assert torch.equal(average, kept)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_tolerance(graphs: GraphCapture) -> None:
    offsets = iter((0.0, 0.0, 0.0, 0.0, 0.001, 0.001))
    captured = graphs(lambda x: x + next(offsets), torch.ones(3))
    captured.assert_matches_eager(replays=1, atol=0.01)
    with pytest.raises(GraphError):
        captured.assert_matches_eager(replays=1, atol=0.0001)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"replays": 0}, "replays=0 is not a number of replays"),
        ({"replays": -1}, "replays=-1 is not a number of replays"),
        ({"replays": True}, "replays=True is not a number of replays"),
        ({"replays": 1.5}, "replays=1.5 is not a number of replays"),
        ({"inputs": []}, "no inputs to compare for"),
        ({"rtol": -1}, "rtol=-1 is not a tolerance"),
        ({"atol": float("nan")}, "atol=nan is not a tolerance"),
        ({"atol": "0.1"}, "atol='0.1' is not a tolerance"),
    ],
)
def test_what_would_compare_nothing_is_refused(graphs: GraphCapture, options: dict[str, Any], text: str) -> None:
    captured = graphs(lambda x: x * 2, torch.ones(3))
    with pytest.raises(ValueError, match=f"^{text}$"):
        captured.assert_matches_eager(**options)
    if "replays" in options:
        with pytest.raises(ValueError, match=f"^{text}$"):
            captured.assert_no_allocations(**options)


@dataclasses.dataclass
class Result:
    """No tree that torch knows."""

    y: torch.Tensor


def test_an_object_that_is_no_tree(graphs: GraphCapture) -> None:
    captured = graphs(lambda x: Result(x * 2), torch.ones(3))
    assert captured.notes == (
        (
            "output is a Result, which torch treats as one value: its tensors are neither copied nor compared; return "
            "tensors, or register the class with torch.utils._pytree"
        ),
    )
    with pytest.raises(GraphError) as failure:
        captured.assert_matches_eager(replays=2)
    assert str(failure.value) == (
        "the graph differs from eager in 2 values, in 2 of 2 replays:\n"
        "inputs 1, replay 1: output: a Result in the graph, another Result in eager\n"
        "inputs 1, replay 2: output: a Result in the graph, another Result in eager"
    )


def test_other_values_are_left_as_they_are(graphs: GraphCapture) -> None:
    captured = graphs(lambda x, scale: (x * 2, None, "text", scale), torch.ones(3), float("nan"))
    assert captured.notes == ()
    captured.replay(torch.ones(3), float("nan"))
    captured.assert_matches_eager([(torch.zeros(3), float("nan"))])


def test_a_graph_of_inference_mode_is_replayed_outside_of_it(graphs: GraphCapture) -> None:
    weight = torch.ones(3, requires_grad=True)
    with torch.inference_mode():
        captured = graphs(lambda x: x * weight, torch.ones(3))
    assert captured.replay(torch.full((3,), 2.0)).tolist() == [2, 2, 2]
    captured.assert_matches_eager([torch.zeros(3)])
    with torch.inference_mode():
        captured.assert_matches_eager([torch.zeros(3)])
