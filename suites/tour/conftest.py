"""What the tour's tests share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> str:
    """A card if there is one. What its libraries allocate once, at their first product, belongs to this fixture."""
    name = "cuda" if torch.cuda.is_available() else "cpu"
    layer = torch.nn.Linear(64, 64, device=name)
    (layer(torch.ones(64, 64, device=name)) @ layer.weight).sum().backward()
    return name
