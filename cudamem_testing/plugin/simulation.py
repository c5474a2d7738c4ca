"""Tests on simulated cards: without values where a marker says so, and skipped with the reason where one cannot run.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack

import pytest

from cudamem_testing.model.override import NOTHING
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.items import skip
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.simulated import Cards, enter, without_values
from cudamem_testing.simulated.unsupported import unsupported

Wrapper = Generator[None, object, object]


def simulate(config: pytest.Config, cards: Cards) -> Callable[[], None]:
    """Start simulated cards before a conftest file or a test module asks for one; returns a function that stops them.

    Raises:
        pytest.UsageError: no card can be simulated here, with the reason.
    """
    config.pluginmanager.register(OnSimulatedCards(), "cudamem-simulation")
    said: list[str] = config.stash.setdefault(keys.SIMULATION, [])
    try:
        return enter(cards, say=said.append)
    except RecorderUnavailable as reason:
        raise pytest.UsageError(f"cudamem: --cudamem-device=simulated: {reason}") from None


class OnSimulatedCards:
    """Turns the error of a simulated card into a skip, in fixtures and tests; takes values away from marked tests."""

    def __init__(self) -> None:
        self._leaving = ExitStack()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Wrapper:
        """Of fixtures."""
        if not item.stash.get(keys.OVERRIDE, NOTHING).values:
            self._leaving.enter_context(without_values())
        return (yield from _skipping())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Wrapper:
        """Of tests."""
        return (yield from _skipping())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Wrapper:
        """The next test has values again."""
        with self._leaving:
            return (yield)


def _skipping() -> Wrapper:
    try:
        return (yield)
    except Exception as error:
        reason = unsupported(error)
        if reason is None:
            raise
    skip(reason)
