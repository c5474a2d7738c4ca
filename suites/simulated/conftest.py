"""Suites of the simulated card."""

from __future__ import annotations

from pathlib import Path

import pytest

#: Tests of what is said of cards, for which none is simulated.
ALONE = {"test_cards.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what simulates a card."""
    for item in items:
        here = item.path.parent == Path(__file__).parent
        if here and item.path.name not in ALONE and item.get_closest_marker("gpu") is None:
            item.add_marker(pytest.mark.simulated_card)
