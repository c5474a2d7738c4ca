"""What the tour's tests share."""

from __future__ import annotations

import pytest
import torch

from cudamem_testing import Memory


@pytest.fixture(scope="session")
def device() -> str:
    """A card if there is one. What its libraries allocate once, at their first product, belongs to this fixture."""
    name = "cuda" if torch.cuda.is_available() else "cpu"
    multiply(name)
    return name


@pytest.fixture(autouse=True)
def workspaces(device: str) -> None:
    """Of a card's libraries: in a run with other suites they may have been asked to give them back."""
    if device == "cuda":
        multiply(device)


def multiply(device: str) -> None:
    """Products as in a layer, forward and backward."""
    layer = torch.nn.Linear(64, 64, device=device)
    (layer(torch.ones(64, 64, device=device)) @ layer.weight).sum().backward()


@pytest.fixture
def compiler(cuda_memory: Memory) -> None:
    """Hard limits on CPU are the work of the compiled recorder."""
    with cuda_memory.window("probe") as probe:
        pass
    if not all(window.complete for window in probe.windows):
        pytest.skip("a hard limit on CPU needs a C++ compiler")
