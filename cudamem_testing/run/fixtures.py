"""Measures fixtures with a wider scope than a test apart from the tests, as owners of what they allocate.

One that has ended is judged at the end of the running test: by then its value is dropped, and those of the fixtures
that it needed. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from cudamem_testing.model.records import FixtureRecord
from cudamem_testing.run.running import Fixture
from cudamem_testing.windows.owners import Owner

if TYPE_CHECKING:
    from cudamem_testing.model.references import Path
    from cudamem_testing.run.running import ActiveTest
    from cudamem_testing.run.session import Session
    from cudamem_testing.windows.spans import Span

#: The fixtures that pytest makes of ``setup_module``, ``setup_class``, ``setUpClass`` and ``setUpModule``.
_OF_A_CLASS = r"_(?:xunit|unittest)_(?P<function>\w+?)_fixture_(?P<owner>.+)"


class Definition(Protocol):
    """What pytest knows of a fixture."""

    @property
    def argname(self) -> str:
        """Its name."""
        ...

    @property
    def scope(self) -> str:
        """The word for its scope."""
        ...


class MeasuredFixtures:
    """The fixtures of a session that are set up, or being torn down."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._set_up: dict[Definition, Fixture] = {}
        self.ending: dict[Definition, tuple[Fixture, Span, Callable[[], object]]] = {}
        """Those whose finalizers have begun and whose teardown has not ended."""

    @contextmanager
    def setup(self, definition: Definition, running: ActiveTest) -> Iterator[Fixture]:
        """Measure the setup of a fixture by the running test."""
        session = self._session
        session.prepare()
        span = session.tracker.open(f"setup of fixture {definition.argname!r}", exclusive=True)
        fixture = Fixture(Owner(*label_of(definition.argname)))
        leave = session.owners.enter(fixture.owner)
        try:
            yield fixture
        finally:
            windows = session.tracker.close(span)
            leave()
            fixture.measured(running, windows)
            if session.settings.on and session.leaks is not None:
                session.leaks.made(fixture)
            session.fixtures.append(FixtureRecord(definition.argname, definition.scope, running.nodeid, windows))
            self._set_up[definition] = fixture

    def undoing(self, path: Path, finalizers: Callable[[Definition], Iterable[Any]]) -> Fixture | None:
        """The latest fixture whose ``finalizers`` undo a name of a path."""
        from cudamem_testing.run.undone import names_undone

        if not path.steps or not self._set_up:
            return None
        names = {path.root, *(step.reference.name for step in path.steps)}
        for definition, fixture in reversed(self._set_up.items()):
            if not names.isdisjoint(names_undone(finalizers(definition))):
                return fixture
        return None

    def begin_teardown(self, definition: Definition, fixture: Fixture) -> None:
        """Its finalizers begin; a fixture whose setup failed and was repeated counts once, by its last setup."""
        if self._set_up.get(definition) is not fixture:
            return
        del self._set_up[definition]
        session = self._session
        span = session.tracker.open(f"teardown of fixture {definition.argname!r}", exclusive=True)
        self.ending[definition] = fixture, span, session.owners.enter(fixture.owner)

    def end_teardown(self, definition: Definition) -> None:
        """Its finalizers have run, and its value is dropped."""
        fixture, span, leave = self.ending.pop(definition)
        session, running = self._session, self._session.running
        windows = session.tracker.close(span)
        leave()
        fixture.measured(running, windows)
        if session.retained is not None:
            session.retained.ended(definition.argname, id(definition))
        if running is not None:
            running.over.append(fixture)
        nodeid = "" if running is None else running.nodeid
        session.fixtures.append(FixtureRecord(definition.argname, definition.scope, nodeid, windows))


def label_of(name: str) -> tuple[str, str]:
    """The label of a fixture as an owner of memory, and its name."""
    match = re.fullmatch(_OF_A_CLASS, name)
    return (f"fixture {name!r}", name) if match is None else (f"{match['function']} of {match['owner']}",) * 2
