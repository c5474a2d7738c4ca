"""Hooks around fixtures with a wider scope than a test: they are measured apart from tests (run/fixtures.py).

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing.plugin.items import is_foreign
from cudamem_testing.run.fixtures import MeasuredFixtures

if TYPE_CHECKING:
    from cudamem_testing.model.references import Path
    from cudamem_testing.run.running import Fixture
    from cudamem_testing.run.session import Session


class HigherScopedFixtures:
    """Measures those of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._measured = MeasuredFixtures(session)
        self.item: pytest.Item | None = None
        """The running test, while it is measured."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Measure the setup apart."""
        __tracebackhide__ = is_foreign
        running = self._session.running
        if running is None or fixturedef.scope == "function":
            return (yield)
        with self._measured.setup(fixturedef, running) as fixture:
            try:
                return (yield)
            finally:  # the last finalizer that is added runs first
                fixturedef.addfinalizer(lambda: self._measured.begin_teardown(fixturedef, fixture))

    def undoing(self, path: Path) -> Fixture | None:
        """The latest fixture whose teardown undoes a name of a path."""
        return self._measured.undoing(path, _finalizers)

    @pytest.hookimpl(trylast=True)
    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """Drop the value, as pytest does right after this, so that freeing its memory counts for the fixture."""
        if fixturedef not in self._measured.ending:
            return
        fixturedef.cached_result = None
        running = self._session.running
        if running is not None and running.phases.name == "teardown":
            (getattr(self.item, "funcargs", None) or {}).pop(fixturedef.argname, None)
        self._measured.end_teardown(fixturedef)


def _finalizers(definition: Any) -> list[Any]:
    """What runs at the end of a fixture."""
    found: list[Any] = definition._finalizers
    return found
