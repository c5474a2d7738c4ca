"""Generation with a Llama: the size of the key-value cache by formula."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from cudamem_testing import Memory
from fixtures.models import extend, llama, tokens

pytestmark = pytest.mark.memory_budget(retained=0)


@pytest.fixture(scope="module")
def model(device: str) -> PreTrainedModel:
    """Shared by the tests of this file."""
    return llama().to(device).eval()


@pytest.mark.memory_budget(peak={"cpu": "4.5MiB", "cuda": "4.5MiB"})
def test_generate(model: PreTrainedModel, device: str) -> None:
    """A limit for each kind of device, because their operators differ."""
    prompt = tokens(4, 64, device)
    model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=32, do_sample=False)


@torch.no_grad()
def test_cache(model: PreTrainedModel, device: str, cuda_memory: Memory) -> None:
    """Regions add up: each keeps exactly the keys and values of its tokens, to the byte."""
    prompt = tokens(4, 64, device)
    shape = model.config
    token_bytes = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * 4 * len(prompt)
    cache = DynamicCache()
    with cuda_memory.window("prefill") as prefill:
        extend(model, prompt, cache)
    with cuda_memory.window("decode") as decode:
        for _ in range(32):
            extend(model, prompt[:, :1], cache)

    assert prefill.retained == 64 * token_bytes
    assert decode.retained == 32 * token_bytes
