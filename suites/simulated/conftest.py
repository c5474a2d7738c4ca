"""Suites of the simulated card: a build of torch with CUDA has kernels of its own, beside which none is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

#: Tests of what is said of cards, for which none is simulated.
ALONE = {"test_cards.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what simulates a card where none can be."""
    if torch.version.cuda is None:
        return
    for item in items:
        here = item.path.parent == Path(__file__).parent
        if here and item.path.name not in ALONE and item.get_closest_marker("gpu") is None:
            item.add_marker(pytest.mark.skip(reason="no card is simulated in a build with CUDA"))
