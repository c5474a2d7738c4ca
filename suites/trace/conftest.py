"""A memory profile collects garbage before it ends: most of the time of these tests, if it walked all of the heap."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def heap(cheap_collections: None) -> None:
    """That of the tests alone."""
