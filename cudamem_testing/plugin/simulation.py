"""Tests on simulated cards: without values where a marker says so, and skipped with the reason where it cannot run.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import ExitStack

import pytest

from cudamem_testing.model.override import NOTHING
from cudamem_testing.plugin import keys
from cudamem_testing.simulated import without_values
from cudamem_testing.simulated.unsupported import unsupported

Wrapper = Generator[None, object, object]

NEEDS_CARDS = "is for simulated cards alone: run it with --cudamem-device=simulated"


def skip_without_cards(items: Iterable[pytest.Item]) -> None:
    """Skip tests whose marker asks for simulated cards, in a run that has none."""
    for item in items:
        if item.stash.get(keys.OVERRIDE, NOTHING).simulated:
            item.add_marker(pytest.mark.skip(reason=NEEDS_CARDS))


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
    pytest.skip(reason)
