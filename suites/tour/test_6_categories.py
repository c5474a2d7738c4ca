"""A training step of GPT-2 at its peak: what the memory is used for, in units of the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from cudamem_testing import MemoryProfile
from fixtures.models import gpt2, parameter_bytes, tokens

pytestmark = pytest.mark.memory_budget(retained=0)


@pytest.fixture(scope="module")
def model(device: str) -> PreTrainedModel:
    """Gradients are dropped after each step."""
    return gpt2().to(device).train()


def test_peak(model: PreTrainedModel, device: str, memory_profile: Callable[..., MemoryProfile]) -> None:
    """Adam's moments are two copies of the model; the activations of 512 tokens are between four and five."""
    adam = torch.optim.AdamW(model.parameters())
    batch = tokens(4, 128, device)

    def train() -> None:
        model(input_ids=batch, labels=batch).loss.backward()
        adam.step()
        adam.zero_grad()

    train()
    profile = memory_profile(train)

    size = parameter_bytes(model)
    profile.assert_peak(
        {"PARAMETER": size, "OPTIMIZER_STATE": int(2.01 * size), "ACTIVATION": 5 * size, "GRADIENT": 0},
        at_least={"PARAMETER": size, "OPTIMIZER_STATE": 2 * size, "ACTIVATION": 4 * size},
    )
