"""What is measured begins after a collection of garbage: most of the time of these tests, if it walked all of the heap."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def heap(cheap_collections: None) -> None:
    """That of the tests alone."""
