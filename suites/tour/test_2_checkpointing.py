"""Gradient checkpointing of GPT-2: does it save what it promises?"""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from cudamem_testing import Memory
from fixtures.models import checkpointed, gpt2, tokens

pytestmark = pytest.mark.memory_budget(retained=0)


@pytest.fixture(scope="module")
def model(device: str) -> PreTrainedModel:
    """A model that is equal in both runs."""
    return gpt2().to(device).train()


def test_saved(model: PreTrainedModel, device: str, cuda_memory: Memory) -> None:
    """While the loss is alive, the window retains what the forward pass keeps for backward."""
    batch = tokens(4, 128, device)
    with cuda_memory.window("plain") as plain:
        loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    with checkpointed(model), cuda_memory.window("checkpointed") as recomputed:
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
    loss.backward()
    model.zero_grad()

    assert plain.retained > 10 * recomputed.retained
