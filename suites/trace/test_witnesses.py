"""Categories that only the process itself can tell: an optimizer's lists, sparse gradients."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from cudamem_testing.trace.categories import Category
from cudamem_testing.trace.profile import MemoryProfile, memory_profile
from cudamem_testing.trace.witnesses import optimizers_in, state_of

SIZE = 4096
MODULE_OPTIMIZER: Any = None  # set by a test: making one imports the compiler of torch


def by_hand(value: object) -> int:
    """Bytes of the tensors in a value."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, dict):
        return sum(map(by_hand, value.values()))
    return sum(map(by_hand, value)) if isinstance(value, (list, tuple)) else 0


def lbfgs() -> tuple[torch.nn.Parameter, torch.optim.LBFGS, Any]:
    weight = torch.nn.Parameter(torch.linspace(0.5, 2, SIZE))
    optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=3, history_size=10)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((weight - 1) ** 2).sum() + (weight**4).sum()
        loss.backward()
        return loss

    def step() -> None:
        optimizer.step(closure)  # type: ignore[arg-type]

    return weight, optimizer, step


def at_the_end(profile: MemoryProfile, category: Category) -> int:
    """Bytes of a category when the recording ends."""
    series = profile.timeline().series("cpu")
    return series.at(len(series.times) - 1).get(category.name, 0)


@pytest.mark.parametrize("named", [False, True], ids=["in a closure", "by name"])
def test_the_history_of_lbfgs_is_its_state(named: bool) -> None:
    _, optimizer, step = lbfgs()
    step()
    if named:
        with MemoryProfile() as profile:
            step()
            profile.name(optimizer=optimizer)
    else:
        profile = memory_profile(step)
    held = by_hand([*optimizer.state.values()])
    assert held > 8 * SIZE * 4
    # What was there before and is freed inside stays in the account, for on the CPU the profiler does not hear of it;
    # but where its address is allocated again, that tells.
    allowed = (held,) if named else (held, held + SIZE * 4)
    found = at_the_end(profile, Category.OPTIMIZER_STATE)
    assert any(found == pytest.approx(one, abs=64) for one in allowed)


def test_the_gradient_of_a_sparse_embedding() -> None:
    embedding = torch.nn.Embedding(100, 64, sparse=True)

    def step(model: torch.nn.Module, index: torch.Tensor) -> None:
        model(index).sum().backward()

    profile = memory_profile(step, model=embedding, index=torch.arange(32))
    gradient = embedding.weight.grad
    assert gradient is not None
    wanted = gradient._values().untyped_storage().nbytes() + gradient._indices().untyped_storage().nbytes()
    assert at_the_end(profile, Category.GRADIENT) == wanted


def test_the_dialect_of_torch_keeps_its_own_answer() -> None:
    embedding = torch.nn.Embedding(100, 64, sparse=True)
    profile = memory_profile(lambda model: model(torch.arange(32)).sum().backward(), embedding)
    assert "GRADIENT" in profile.categories().text()
    assert "GRADIENT" not in profile.categories().text(ids="profiler")


def test_where_optimizers_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    in_module = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    monkeypatch.setattr(sys.modules[__name__], "MODULE_OPTIMIZER", in_module)

    class Trainer:
        def __init__(self) -> None:
            self.optimizer = inner

        def step(self) -> None:
            self.optimizer.step()

    def uses() -> None:
        MODULE_OPTIMIZER.step()

    def around() -> None:
        uses()

    def far() -> None:
        around()

    assert [*optimizers_in(inner)] == [*optimizers_in({"a": [(inner,)]})] == [*optimizers_in(Trainer().step)] == [inner]
    assert [*optimizers_in(uses)] == [*optimizers_in(around)] == [in_module]
    assert [*optimizers_in(far)] == []
    assert [*optimizers_in(None, 5, torch.sin, [inner, inner])] == [inner]


def test_state_that_refers_to_itself() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    table: dict[str, Any] = {"x": [torch.ones(2), (torch.ones(3), 5)]}
    table["me"] = table
    optimizer.state["own"] = table  # type: ignore[index]
    assert sorted(len(one) for one in state_of(optimizer)) == [2, 3]  # type: ignore[arg-type]
