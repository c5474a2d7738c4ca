"""Inference with a ViT: a budget for each batch size, and a hard limit."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from cudamem_testing import Memory
from fixtures.models import images, vit

pytestmark = pytest.mark.memory_budget(retained=0)


@pytest.fixture(scope="module")
def model(device: str) -> PreTrainedModel:
    """Shared by the tests of this file."""
    return vit().to(device).eval()


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(1, marks=pytest.mark.memory_budget(peak="950KiB")),
        pytest.param(16, marks=pytest.mark.memory_budget(peak="15MiB")),
    ],
)
@torch.no_grad()
def test_batch(model: PreTrainedModel, device: str, batch: int) -> None:
    """Each parameter has its own budget. Without ``no_grad``, 16 images need 68 MiB."""
    model(images(batch, device))


@pytest.mark.usefixtures("compiler")
@torch.no_grad()
def test_too_large(model: PreTrainedModel, device: str, cuda_memory: Memory) -> None:
    """A hard limit: the allocation that would exceed it raises, and the next batch runs normally."""
    with cuda_memory.limit("16MiB"), pytest.raises(torch.OutOfMemoryError):
        model(images(1024, device))
    model(images(1, device))
