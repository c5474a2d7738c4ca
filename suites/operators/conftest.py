"""Each measurement begins after a collection of garbage: most of the time, if that walked all of the heap."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def heap(cheap_collections: None) -> None:
    """That of the tests alone."""
