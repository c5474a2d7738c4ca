"""Tests that ask a simulated card for what it cannot do are skipped, with the reason. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from cudamem_testing.simulated.bindings import SimulatedCardError

Wrapper = Generator[None, object, object]


class SkipUnsupported:
    """Turns the error of a simulated card into a skip, in fixtures and tests."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Wrapper:
        """Of fixtures."""
        return (yield from _skipping())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Wrapper:
        """Of tests."""
        return (yield from _skipping())


def _skipping() -> Wrapper:
    try:
        return (yield)
    except SimulatedCardError as reason:
        pytest.skip(str(reason))
