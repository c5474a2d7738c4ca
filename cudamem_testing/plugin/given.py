"""Tests of hypothesis: each example is a region, and our fixtures can be parameters beside what ``@given`` draws.

Hypothesis refuses function-scoped fixtures, because one example leaves state for the next. Our fixtures drop theirs
before each example, so they are hidden from that check; it covers all other fixtures as always. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest
from _pytest.unittest import TestCaseFunction

from cudamem_testing.plugin import keys
from cudamem_testing.plugin.items import is_foreign
from cudamem_testing.run.example_bodies import (
    Body,
    examples_of,
    explained_without_us,
    machine_placed,
    without_parameters,
)

if TYPE_CHECKING:
    from cudamem_testing.run.examples import Examples

Wrapper = Generator[None, object, object]
FIXTURES = "cudamem_testing.plugin.fixtures"


def has_examples(item: pytest.Item) -> bool:
    """Whether hypothesis runs a test for each of its examples; it marks functions and state machines."""
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False) is True


def is_given(item: pytest.Item) -> bool:
    """Whether it generates the arguments of a test."""
    return has_examples(item) and hasattr(item.obj, "hypothesis")  # type: ignore[attr-defined]


class Given:
    """Runs the examples of such tests."""

    def __init__(self) -> None:
        self._show_parameters: Callable[[], object] = int

    @pytest.hookimpl(wrapper=True)  # inside of what judges the call; outside of hypothesis, which is registered earlier
    def pytest_runtest_call(self, item: pytest.Item) -> Wrapper:
        """Hide our fixtures from the check of hypothesis."""
        __tracebackhide__ = is_foreign
        if not has_examples(item):
            return (yield)
        if not is_given(item):  # a state machine
            with explained_without_us(), machine_placed(_examples_of(item), partial(_kept_failure, item)):
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
        _examples_of(item),
        getattr(item, "fixturenames", ()),
        resets,
        inspect.signature(handle.inner_test),
    )
    return body.placed(handle, partial(_kept_failure, item))


def _examples_of(item: pytest.Item) -> Examples | None:
    return examples_of(item.config.stash.get(keys.SESSION, None))


def _kept_failure(item: pytest.Item) -> BaseException | None:
    """The failure of a test of unittest, which keeps it instead of raising."""
    failed = getattr(item, "_excinfo", None)
    return failed[-1].value if failed else None
