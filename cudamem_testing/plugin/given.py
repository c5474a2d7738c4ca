"""Tests of hypothesis: each example is a region, and our fixtures can be parameters beside what ``@given`` draws.

Hypothesis refuses function-scoped fixtures, because one example leaves state for the next. Our fixtures drop theirs
before each example, so they are hidden from that check; it covers all other fixtures as always. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack

import pytest
from _pytest.unittest import TestCaseFunction

from cudamem_testing.plugin import keys
from cudamem_testing.plugin.items import is_foreign
from cudamem_testing.run.example_bodies import Body, examples_of, explained_without_us, without_parameters

Wrapper = Generator[None, object, object]
FIXTURES = "cudamem_testing.plugin.fixtures"


def is_given(item: pytest.Item) -> bool:
    """Whether hypothesis generates the arguments of a test; it marks functions and state machines."""
    body = getattr(item, "obj", None)
    return getattr(body, "is_hypothesis_test", False) is True and hasattr(body, "hypothesis")


class Given:
    """Runs the examples of such tests."""

    def __init__(self) -> None:
        self._show_parameters: Callable[[], object] = int

    @pytest.hookimpl(wrapper=True)  # inside of what judges the call; outside of hypothesis, which is registered earlier
    def pytest_runtest_call(self, item: pytest.Item) -> Wrapper:
        """Hide our fixtures from the check of hypothesis."""
        __tracebackhide__ = is_foreign
        if not is_given(item):
            return (yield)
        with ExitStack() as stack:
            stack.enter_context(explained_without_us())
            hidden = stack.enter_context(ExitStack())
            hidden.enter_context(without_parameters(item.function, _our_fixtures(item)))  # type: ignore[attr-defined]
            self._show_parameters = hidden.close
            if isinstance(item, TestCaseFunction):  # pytest calls no hook for the method
                stack.enter_context(_region_for_each(item))
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Wrapper:
        """Make each example a region; hypothesis has checked the parameters and now needs them all."""
        __tracebackhide__ = is_foreign
        if not is_given(pyfuncitem):
            return (yield)
        self._show_parameters()
        with _region_for_each(pyfuncitem):
            return (yield)


def _our_fixtures(item: pytest.Item) -> list[str]:
    """The names of parameters that are fixtures of this package, and not other fixtures of the same name."""
    info = getattr(item, "_fixtureinfo", None)
    if info is None:
        return []
    last = {name: found[-1].func for name, found in info.name2fixturedefs.items() if found}
    return [name for name in info.argnames if getattr(last.get(name), "__module__", None) == FIXTURES]


def _region_for_each(item: pytest.Item) -> AbstractContextManager[None]:
    """Call the body of each example in a region, and judge it there."""
    handle = item.obj.hypothesis  # type: ignore[attr-defined]
    resets = item.stash.setdefault(keys.EACH_EXAMPLE, [])
    body = Body(
        handle.inner_test,
        examples_of(item.config.stash.get(keys.SESSION, None)),
        getattr(item, "fixturenames", ()),
        resets,
        inspect.signature(handle.inner_test),
    )

    def failure() -> BaseException | None:
        failed = getattr(item, "_excinfo", None)  # unittest keeps failures here instead of raising
        return failed[-1].value if failed else None

    return body.placed(handle, failure)
