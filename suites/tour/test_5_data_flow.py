"""Data flow of a Llama: how often attention copies its scores, as a text that is the same on every device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from cudamem_testing import MemoryProfile
from fixtures.models import llama, tokens

pytestmark = pytest.mark.memory_budget(retained=0)


@pytest.fixture(scope="module")
def model(device: str) -> PreTrainedModel:
    """A model with one layer, because all layers are equal, and attention written in Python."""
    model = llama()
    model.model.layers = model.model.layers[:1]
    model.set_attn_implementation("eager")
    return model.to(device).eval()


@torch.no_grad()
def test_scores(model: PreTrainedModel, device: str, memory_profile: Callable[..., MemoryProfile]) -> None:
    """Only the scores are this large: they are recomputed four times, and at most two copies are live at once."""
    batch = tokens(1, 320, device)
    with memory_profile() as profile:
        model(batch, logits_to_keep=1, use_cache=False)
    profile.assert_data_flow(
        """
        aten::matmul                               ->  T0(v0)
        aten::mul                 T0(v0)           ->  T1(v0)
        [memory]                  T0(v0*)          ->
        aten::add                 T1(v0)           ->  T2(v0)
        [memory]                  T1(v0*)          ->
        aten::softmax             T2(v0)           ->  T3(v0)
        aten::to                  T3(v0)           ->
        [memory]                  T2(v0*)          ->
        aten::dropout             T3(v0)           ->
        aten::matmul              T3(v0)           ->
        [memory]                  T3(v0*)          ->
        """,
        min_bytes="1200KiB",
    )
