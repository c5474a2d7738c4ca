"""A collection of garbage for each cycle that is looked at: most of the time of these tests, on the whole heap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from suites.heap import set_aside


@pytest.fixture(scope="module")
def small_heap() -> Iterator[None]:
    """The objects of the module alone, for tests of what is found; those of how it is found take the whole heap."""
    with set_aside():
        yield
