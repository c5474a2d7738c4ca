"""Graphed callables: what is in the way, and the proof that they equal eager ones."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cudamem_testing.graphs.callables import OTHER_STREAM
from cudamem_testing.graphs.captured import GraphError
from cudamem_testing.graphs.failure import CaptureError, Failure
from cudamem_testing.graphs.obstacles import NO_GRADIENT, ObstacleError, obstacles
from cudamem_testing.graphs.reasons import SILENT
from cudamem_testing.graphs.rules import Rule
from cudamem_testing.graphs.session import GraphCapture
from cudamem_testing.snapshots.record import Segment
from suites.graphs.fake import FakeBackend

ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    for module in ("capture", "callables"):
        monkeypatch.setattr(f"cudamem_testing.graphs.{module}.collect_garbage", lambda: None)
    torch.manual_seed(0)
    return FakeBackend()


def watch(*_: Any) -> None:
    """A hook."""


def texts(function: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    return [str(one) for one in obstacles([function], [args], **options)]


def test_nothing_is_in_the_way() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    x = torch.ones(2, 4)
    assert texts(model, x) == []
    assert model[0].weight.grad is None


def test_hooks_by_module_and_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    model.register_forward_pre_hook(watch)
    model.register_full_backward_hook(watch)
    model[0].register_forward_hook(watch)
    assert texts(model, torch.ones(2, 4)) == [
        "Sequential: forward pre hook function watch on it: register it after graphing",
        "Sequential: backward hook function watch on it: register it after graphing",
        "Sequential: forward hook function watch on 0 runs during the capture only (a remark)",
    ]


def test_buffers_arguments_and_modes() -> None:
    model = torch.nn.Linear(4, 4)
    model.register_buffer("scale", torch.ones(4, requires_grad=True))
    assert texts(model, torch.ones(2, 4), {"a": 3}, double_backward=True, sample_kwargs=[{"bias": 1}]) == [
        "a graphed callable cannot be differentiated twice; do not graph what needs a second backward",
        "Linear: keyword arguments are not passed on: bias; make them positional",
        "Linear: argument [1]['a'] is 3, and only tensors can be arguments: bind it before",
        "Linear: buffer scale requires grad: make it a parameter, or call requires_grad_(False)",
    ]


def test_unused_inputs_and_parameters() -> None:
    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z: torch.Tensor = self.used(x)
            return z

    given = torch.ones(2, 4), torch.ones(2, 4, requires_grad=True)
    text = "Half: not used by any output: argument [1], parameter idle.weight, parameter idle.bias"
    assert texts(Half(), *given) == [f"{text}; pass allow_unused_input=True, or leave them out"]
    assert texts(Half(), *given, allow_unused_input=True) == [f"{text} (a remark)"]


def test_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"function double: {NO_GRADIENT}"

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for able, end in ((True, " (a remark)"), (False, "")):
        monkeypatch.setattr("cudamem_testing.graphs.obstacles.graphs_without_gradients", lambda able=able: able)
        assert texts(double, torch.ones(3)) == [text + end]


def test_autocast() -> None:
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert texts(model, x) == [
            "autocast caches weights, and the graph would keep reading the copies: use autocast(cache_enabled=False)"
        ]
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        assert texts(model, x) == []


def test_several_are_numbered_and_must_fit(backend: FakeBackend) -> None:
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.register_forward_hook(watch)
    with pytest.raises(ObstacleError) as failure:
        GraphCapture(backend).callables((first, second), ((torch.ones(4),), (torch.ones(4),), (torch.ones(4),)))
    assert str(failure.value) == (
        "not fit for graphed callables:\n"
        "   2 callables have 3 sets of sample arguments\n"
        "   callables[1] (Linear): forward hook function watch on it: register it after graphing"
    )
    assert backend.events == []


def test_equal_to_eager(backend: FakeBackend) -> None:
    models = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout()), torch.nn.Linear(8, 2)
    made = GraphCapture(backend).callables(models, ((torch.ones(3, 4, requires_grad=True),), (torch.ones(3, 8),)))
    assert backend.events == ["graph 2 callables, warm up 3"]
    made.assert_matches_eager(steps=3)
    made.assert_matches_eager(steps=2, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    assert str(made) == (
        "2 graphed callables\n"
        "callables[0] (Sequential): 5.0 MiB in pools, 160 B of parameters\n"
        "callables[1] (Linear): 5.0 MiB in pools, 72 B of parameters"
    )


def wrong(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda function: lambda *args: change(function(*args))


class Doubled(torch.autograd.Function):
    """The right value with a wrong gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda y: y + 1, "   output[0]: Mismatched elements: 6 / 6 (100.0%)"),
        (lambda y: Doubled.apply(y), "   gradient of input[0][0]: Mismatched elements: 12 / 12 (100.0%)"),
    ],
)
def test_a_difference_is_named(backend: FakeBackend, change: Callable[..., Any], first: str) -> None:
    backend.wrap = wrong(change)
    made = GraphCapture(backend).callables(torch.nn.Linear(4, 2), (torch.ones(3, 4, requires_grad=True),))
    with pytest.raises(GraphError) as failure:
        made.assert_matches_eager()
    lines = str(failure.value).splitlines()
    assert lines[0] == "graphed and eager differ in step 1:"
    assert lines[1].startswith(first)


def test_gradients_in_the_graphs_own_memory(backend: FakeBackend) -> None:
    """The memory that a graph writes becomes ``.grad`` where there is none: the next backward overwrites it."""
    static = torch.zeros(4)

    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            x, weight = ctx.saved_tensors
            static.copy_(gradient * x)
            return gradient * weight, static.detach()

    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    scale, x = Scale(), torch.ones(4)
    backend.wrap = lambda function: lambda x: Graphed.apply(x, scale.weight)
    made = GraphCapture(backend).callables(scale, (torch.ones(4, requires_grad=True),))
    backend.orphans.append(Segment(static.untyped_storage().data_ptr(), static.nbytes, pool=made.pool))
    made.assert_matches_eager(steps=2, accumulate=3)
    made.assert_static_grads()

    scale.weight.grad = None
    made(x).sum().backward()
    with pytest.raises(GraphError) as failure:
        made.assert_static_grads()
    assert str(failure.value) == (
        "1 gradient in the pool of the graphs, which the next backward overwrites:\n"
        "   weight.grad float32[4] on cpu\n"
        "   do: give each parameter its .grad before the first backward, and zero it with set_to_none=False"
    )


def test_torchs_usual_warning_for_graphed_callables_is_ignored(backend: FakeBackend) -> None:
    """Warnings are errors in these suites."""

    class Warns(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            warnings.warn(f"{OTHER_STREAM} of the node that produced the gradient", stacklevel=1)
            return gradient * 2

    made = GraphCapture(backend).callables(lambda x: Warns.apply(x), (torch.ones(3, requires_grad=True),))
    made.assert_matches_eager(steps=2)


def test_differentiating_twice_is_explained(backend: FakeBackend) -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    def penalty(x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad((x.square() * 2).square().sum(), x, create_graph=True)
        return x + gradient

    def graphed_penalty(x: torch.Tensor) -> torch.Tensor:
        y = Once.apply(x.square())
        (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return x + gradient

    backend.wrap = lambda function: graphed_penalty
    made = GraphCapture(backend).callables(penalty, (torch.ones(3, requires_grad=True),))
    with pytest.raises(GraphError, match=r"^graphed callables cannot be differentiated twice"):
        made.assert_matches_eager(steps=1)


class Reads(torch.nn.Module):
    """Reads a value, forward or backward."""

    def __init__(self, *, forward: bool) -> None:
        super().__init__()
        self.reads_forward = forward
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y / y.max().item() if self.reads_forward else Scales.apply(y)


class Scales(torch.autograd.Function):
    """Reads a value in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * gradient.max().item()  # breaks


def refused(graphs: GraphCapture, *modules: torch.nn.Module) -> Failure:
    """The explanation of callables that torch could not graph."""
    with pytest.raises(CaptureError) as failure:
        graphs.callables(modules, tuple((torch.ones(2, 4),) for _ in modules))
    return failure.value.failure


def test_callables_that_cannot_be_captured_are_explained(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    monkeypatch.setattr(backend, "make_graphed_callables", refuse)
    graphs = GraphCapture(backend, root=ROOT, owner="this test")
    told = refused(graphs, torch.nn.Linear(4, 4), Reads(forward=True))
    assert (told.function, told.operator, told.rule) == (
        "callables[1] (Reads)",
        "aten::_local_scalar_dense",
        Rule.HOST_READ,
    )
    assert told.place.source == "return y / y.max().item() if self.reads_forward else Scales.apply(y)"
    assert (told.owner, told.orphans) == ("this test", ())
    backend.orphans.append(Segment(2**40, 2**21, pool=(77, 0)))
    backend.leaves_orphans = True
    told = refused(graphs, Reads(forward=False))
    assert [use.pool for use in told.orphans] == [segment.pool for segment in backend.orphans[1:]]
    assert (told.function, told.operator) == ("Reads with its backward", "aten::_local_scalar_dense")
    assert told.place.source == "return gradient * gradient.max().item() # breaks"
    told = refused(graphs, torch.nn.Linear(4, 4))
    assert (told.function, told.rule, told.meaning) == ("graphed callables", None, SILENT)
    assert backend.graphs == []


def test_a_failed_graphing_frees_its_captures_with_the_pool(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    living: list[bool] = []

    def refuse(*args: Any) -> Any:
        static = torch.ones(3)
        made.append(weakref.ref(static))
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    monkeypatch.setattr(backend, "make_graphed_callables", refuse)
    monkeypatch.setattr(backend, "recover", lambda graph: living.append(made[0]() is not None))
    refused(GraphCapture(backend, root=ROOT), torch.nn.Linear(4, 4))
    assert living == [False]
