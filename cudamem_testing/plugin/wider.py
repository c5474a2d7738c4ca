"""Measures wider fixtures apart from the tests that use them, as owners of what they allocate.

One that has ended is judged at the end of the running test: by then its value is dropped, and those of the fixtures
that it needed. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing.model.records import FixtureRecord
from cudamem_testing.plugin.items import is_foreign
from cudamem_testing.run.running import Fixture
from cudamem_testing.windows.owners import Owner

if TYPE_CHECKING:
    from cudamem_testing.objects import Path
    from cudamem_testing.run.session import Session
    from cudamem_testing.windows.tracker import Span

#: The fixtures that pytest makes of ``setup_module``, ``setup_class``, ``setUpClass`` and ``setUpModule``.
_OF_A_CLASS = re.compile(r"_(?:xunit|unittest)_(?P<function>\w+?)_fixture_(?P<owner>.+)")


class WiderFixtures:
    """The wider fixtures of a session, measured as owners."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.item: pytest.Item | None = None
        """The test that runs, while it is measured."""
        self._made: dict[pytest.FixtureDef[Any], Fixture] = {}
        self._ending: dict[pytest.FixtureDef[Any], tuple[Fixture, Span, Callable[[], None]]] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Measure the setup apart."""
        __tracebackhide__ = is_foreign
        session, running = self._session, self._session.running
        if running is None or fixturedef.scope == "function":
            return (yield)
        session.prepare()
        name = fixturedef.argname
        span = session.tracker.open(f"setup of fixture {name!r}", exclusive=True)
        fixture = Fixture(Owner(*label_of(name)))
        back = session.owners.enter(fixture.owner)
        try:
            return (yield)
        finally:
            windows = session.tracker.close(span)
            back()
            fixture.measured(running, windows)
            if session.settings.on and session.leaks is not None:
                session.leaks.made(fixture)
            self._session.fixtures.append(FixtureRecord(name, fixturedef.scope, running.nodeid, windows))
            self._made[fixturedef] = fixture
            fixturedef.addfinalizer(lambda: self._end(fixturedef, fixture))  # runs first: the last one added

    def undoing(self, path: Path) -> Fixture | None:
        """The latest fixture whose teardown undoes a name of a path."""
        from cudamem_testing.run.undone import names_undone

        if not path.steps or not self._made:
            return None
        names = {path.root, *(step.reference.name for step in path.steps)}
        for definition, fixture in reversed(self._made.items()):
            if not names.isdisjoint(names_undone(definition._finalizers)):
                return fixture
        return None

    def _end(self, fixturedef: pytest.FixtureDef[Any], fixture: Fixture) -> None:
        if self._made.get(fixturedef) is not fixture:  # its setup has failed and was repeated: the last one counts
            return
        del self._made[fixturedef]
        session = self._session
        span = session.tracker.open(f"teardown of fixture {fixturedef.argname!r}", exclusive=True)
        self._ending[fixturedef] = fixture, span, session.owners.enter(fixture.owner)

    @pytest.hookimpl(trylast=True)
    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """Drop the value, as pytest does right after this, so that freeing its memory counts for the fixture."""
        if fixturedef not in self._ending:
            return
        fixture, span, back = self._ending.pop(fixturedef)
        session, running = self._session, self._session.running
        fixturedef.cached_result = None
        if running is not None and running.phase.name == "teardown":
            (getattr(self.item, "funcargs", None) or {}).pop(fixturedef.argname, None)
        windows = session.tracker.close(span)
        back()
        fixture.measured(running, windows)
        if session.retained is not None:
            session.retained.ended(fixturedef.argname, id(fixturedef))
        if running is not None:
            running.over.append(fixture)
        nodeid = "" if running is None else running.nodeid
        self._session.fixtures.append(FixtureRecord(fixturedef.argname, fixturedef.scope, nodeid, windows))


def label_of(name: str) -> tuple[str, str]:
    """The label of a fixture as an owner of memory, and its name."""
    match = _OF_A_CLASS.fullmatch(name)
    return (f"fixture {name!r}", name) if match is None else (f"{match['function']} of {match['owner']}",) * 2
