"""Fixtures and helpers of the tour."""

from __future__ import annotations

import pytest
import torch

from cudamem_testing import Memory


@pytest.fixture(scope="session")
def device() -> str:
    """A card if there is one. Memory that its libraries allocate once, at first use, belongs to this fixture."""
    name = "cuda" if torch.cuda.is_available() else "cpu"
    multiply(name)
    return name


@pytest.fixture(autouse=True)
def workspaces(device: str) -> None:
    """Library workspaces of a card, which other suites of the same run may have released."""
    if device == "cuda":
        multiply(device)


def multiply(device: str) -> None:
    """Matrix products as in a layer, forward and backward."""
    layer = torch.nn.Linear(64, 64, device=device)
    (layer(torch.ones(64, 64, device=device)) @ layer.weight).sum().backward()


@pytest.fixture
def compiler(cuda_memory: Memory) -> None:
    """Skip if the compiled recorder, which enforces hard limits on CPU, is missing."""
    with cuda_memory.window("probe") as probe:
        pass
    if not all(window.complete for window in probe.windows):
        pytest.skip("a hard limit on CPU needs a C++ compiler")
