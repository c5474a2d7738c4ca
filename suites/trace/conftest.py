"""A memory profile collects garbage before it ends: most of the time of these tests, on the whole heap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from suites.heap import set_aside


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> Iterator[None]:
    """The objects of each module alone."""
    with set_aside():
        yield
