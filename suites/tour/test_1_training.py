"""A training step of GPT-2: a budget, where the memory is allocated, and limits in units of the model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from cudamem_testing import Memory
from fixtures.models import gpt2, parameter_bytes, tokens

# For every test of this file: nothing it allocated may remain afterwards.
pytestmark = pytest.mark.memory_budget(retained=0)


@pytest.fixture(scope="module")
def model(device: str) -> PreTrainedModel:
    """13 MiB that are charged to this fixture, not to a test."""
    return gpt2().to(device).train()


@pytest.fixture
def adam(model: PreTrainedModel) -> Iterator[torch.optim.Optimizer]:
    """A new optimizer; afterwards the shared model has no gradients."""
    yield torch.optim.AdamW(model.parameters(), foreach=False)
    model.zero_grad()


def train(model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    """One step that begins and ends without gradients."""
    model(input_ids=batch, labels=batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.memory_budget(peak="74MiB", warmup=1)
def test_step(model: PreTrainedModel, adam: torch.optim.Optimizer, device: str) -> None:
    """A budget for the test: the body first runs once unmeasured, since the first step also creates Adam's moments."""
    train(model, adam, tokens(4, 128, device))


def test_parts_of_a_step(model: PreTrainedModel, adam: torch.optim.Optimizer, device: str, cuda_memory: Memory) -> None:
    """Regions: backward turns all activations into gradients, and the first step creates two moments."""
    batch = tokens(4, 128, device)
    with cuda_memory.window("forward") as forward:
        loss = model(input_ids=batch, labels=batch).loss
    with cuda_memory.window("backward") as backward:
        loss.backward()
    with cuda_memory.window("step") as step:
        adam.step()

    size = parameter_bytes(model)
    assert forward.retained > 4 * size
    assert forward.retained + backward.retained == pytest.approx(size, rel=0.05)
    assert step.retained == pytest.approx(2 * size, rel=0.05)


@pytest.mark.parametrize(("foreach", "copies"), [(False, 1.25), (True, 2.2)], ids=["loop", "foreach"])
def test_copies(model: PreTrainedModel, device: str, foreach: bool, copies: float, cuda_memory: Memory) -> None:
    """A limit computed at run time: gradients are one copy of the model, and Adam with ``foreach`` needs another."""
    batch = tokens(1, 16, device)
    adam = torch.optim.AdamW(model.parameters(), foreach=foreach)
    train(model, adam, batch)
    with cuda_memory.budget(peak=int(copies * parameter_bytes(model))):
        train(model, adam, batch)
