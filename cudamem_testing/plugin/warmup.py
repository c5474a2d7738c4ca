"""Warm-up: the body of a test runs before the run that is measured.

It runs where pytest calls it, inside all that pytest and its plugins have set up around it (captured output, handlers
of logs), with the fixtures of the measured run: they are set up once. What a warm-up run leaves in them (a patched
variable, an optimizer's state) stays for the next run. Regions of a warm-up run are not recorded and their budgets not
enforced; hard limits hold. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from cudamem_testing.plugin.items import is_foreign

if TYPE_CHECKING:
    from cudamem_testing.run.running import ActiveTest
    from cudamem_testing.run.session import Session

    Wrapper = Generator[None, object, object]

WARM_UP = "warm-up"
NO_FAILURES = (KeyboardInterrupt, GeneratorExit, pytest.exit.Exception, pytest.skip.Exception, pytest.xfail.Exception)


class WarmUps:
    """Repeats the bodies of the tests of one session."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config = config
        self._session = session

    def begin(self, running: ActiveTest, item: pytest.Item) -> str:
        """The phase with which the call of a test begins."""
        if not isinstance(item, pytest.Function) or not running.warmup_runs:
            return "call"
        plugins = self._config.pluginmanager
        if not plugins.is_registered(self):  # few sessions need it, and it costs time in every test
            plugins.register(self, "cudamem-warmup")
        return WARM_UP

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Wrapper:
        """Call the body as often as ``warmup`` asks, and then let pytest call it."""
        __tracebackhide__ = is_foreign
        running = self._session.running
        if running is None or running.phases.name != WARM_UP:
            return (yield)
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        with running.warmed_up(partial(pyfuncitem.obj, **arguments), NO_FAILURES):
            self._session.enter(running, "call")
            return (yield)
