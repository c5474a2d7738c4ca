"""The lint: what is no fault though it looks like one, and what methods, hooks and slots change."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from numpy.random import default_rng as rng

from cudamem_testing.graphs.lint import check
from cudamem_testing.graphs.rules import Rule


def trains(x: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(x).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def test_a_training_step_that_recreates_gradients_is_clean() -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trains(torch.ones(2, 3), model, optimizer)
    assert check(trains, torch.ones(2, 3), model, optimizer).text == "no findings"


def test_a_gradient_that_is_read_and_replaced_is_found() -> None:
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)

    def adds(x: torch.Tensor) -> None:
        weight.grad = weight.grad + x

    (finding,) = check(adds, torch.ones(3)).findings
    assert finding.operation == "weight.grad is another tensor now: float32[3]"
    assert finding.place.source == "weight.grad = weight.grad + x"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda x: torch.quantile(x, 0.5),
        lambda x: x.nanquantile(0.5),
        lambda x: torch.vander(x[0, 0]),
    ],
)
def test_tensors_made_inside_operators_are_on_the_right_side(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert check(function, torch.rand(1, 4, 4)).text == "no findings"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_scripted_module() -> None:
    assert check(torch.jit.script(torch.nn.Linear(3, 3)), torch.ones(2, 3)).text == "no findings"


def test_a_forward_that_was_replaced_in_the_instance() -> None:
    model, seen = torch.nn.Linear(3, 3), []
    inner = model.forward

    def counted(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape)
        return inner(x)

    model.forward = counted  # type: ignore[method-assign]
    (finding,) = check(model, torch.ones(2, 3)).findings
    assert (finding.operation, finding.place.source) == ("seen went from 0 to 1 item", "seen.append(x.shape)")


CALLS = 0


class Counts(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global CALLS
        CALLS += 1
        return x * 2


def test_globals_that_an_inner_module_changes() -> None:
    (finding,) = check(torch.nn.Sequential(Counts()), torch.ones(2)).findings
    assert (finding.operation, finding.place.source) == (f"CALLS went from {CALLS - 1} to {CALLS}", "CALLS += 1")


def test_globals_that_another_method_changes() -> None:
    class Steps:
        def step(self, x: torch.Tensor) -> torch.Tensor:
            return self.count(x * 2)

        def count(self, x: torch.Tensor) -> torch.Tensor:
            global CALLS
            CALLS += 1
            return x

    (finding,) = check(Steps().step, torch.ones(2)).findings
    assert (finding.operation, finding.place.source) == (f"CALLS went from {CALLS - 1} to {CALLS}", "CALLS += 1")


def test_what_a_hook_changes() -> None:
    model, seen = torch.nn.Sequential(torch.nn.Linear(3, 3)), []

    def keeps(module: torch.nn.Module, given: Any, output: torch.Tensor) -> None:
        seen.append(output.shape)

    model[0].register_forward_hook(keeps)
    (finding,) = check(model, torch.ones(2, 3)).findings
    assert (finding.operation, finding.place.source) == ("seen went from 0 to 1 item", "seen.append(output.shape)")


def test_what_the_object_of_a_hook_changes() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.calls = 0

        def note(self, module: torch.nn.Module, given: Any) -> None:
            self.calls += 1

    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    model[0].register_forward_pre_hook(Recorder().note)
    (finding,) = check(model, torch.ones(2, 3)).findings
    assert (finding.operation, finding.place.source) == ("Recorder.calls went from 0 to 1", "self.calls += 1")


def test_objects_with_slots() -> None:
    class Slotted:
        __slots__ = ("calls", "never_set")

        def __init__(self) -> None:
            self.calls = 0

    def counts(x: torch.Tensor, state: Slotted) -> torch.Tensor:
        state.calls += 1
        return x

    (finding,) = check(counts, torch.ones(3), Slotted()).findings
    assert (finding.operation, finding.place.source) == ("state.calls went from 0 to 1", "state.calls += 1")


LOG = logging.getLogger(__name__)


def test_a_logger_may_be_asked() -> None:
    def logs(x: torch.Tensor) -> torch.Tensor:
        LOG.debug("shape %s", x.shape)
        return x * 2

    LOG.manager._clear_cache()
    assert check(logs, torch.ones(3)).text == "no findings"


class Draws(NamedTuple):
    draw: Callable[[Any], float]
    generator: Any


@pytest.mark.parametrize("case", [Draws(lambda g: g.random(), random.Random(0)), Draws(lambda g: g.random(), rng(0))])
def test_generators_that_draw_on_the_host(case: Draws) -> None:
    def draws(x: torch.Tensor, generator: Any) -> torch.Tensor:
        return x * case.draw(generator)

    (finding,) = check(draws, torch.ones(3), case.generator).findings
    assert finding.rule is Rule.GENERATOR
    assert finding.operation == "numbers of generator, drawn during the capture only"
    assert check(lambda x, generator: x * 2, torch.ones(3), case.generator).text == "no findings"


def test_fields_of_classes() -> None:
    class Steps:
        calls = 0

        def step(self, x: torch.Tensor) -> torch.Tensor:
            type(self).calls += 1
            return x

    (finding,) = check(Steps().step, torch.ones(2)).findings
    assert (finding.operation, finding.place.source) == ("Steps.calls went from 0 to 1", "type(self).calls += 1")


TABLE = torch.ones(3)


def test_tensors_that_a_property_leads_to() -> None:
    class Model:
        @property
        def table(self) -> torch.Tensor:
            return TABLE

    assert check(lambda x, model: x * model.table, torch.ones(3), Model()).text == "no findings"


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        (lambda x: torch.tensor([x.sum(), 2.0]), "host read: torch.tensor()"),
        (lambda x: x.new_tensor([x.sum(), 2.0]), "host read: Tensor.new_tensor()"),
        (lambda x: torch.linalg.eigh(x), "host read: torch.linalg.eigh()"),
        (lambda x: torch.linalg.eigvalsh(x), "host read: torch.linalg.eigvalsh()"),
        (lambda x: torch.linalg.svdvals(x), "host read: torch.linalg.svdvals()"),
        (lambda x: torch.linalg.matrix_exp(x), "data-dependent shape: torch.linalg.matrix_exp()"),
    ],
)
def test_what_operators_read_inside(function: Callable[[torch.Tensor], torch.Tensor], operation: str) -> None:
    (finding,) = check(function, torch.eye(3)).findings
    assert f"{finding.rule.value}: {finding.operation}" == operation


def test_a_tensor_made_of_one_tensor_is_copied_on_the_device() -> None:
    assert check(lambda x: torch.as_tensor(x) * 2, torch.ones(3)).text == "no findings"
