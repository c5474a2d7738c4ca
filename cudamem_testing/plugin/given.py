"""Tests of hypothesis: each example is a region, and our fixtures may be asked for beside what ``@given`` draws.

The body that hypothesis calls is replaced while the test runs, through the attribute that hypothesis documents for
plugins (``hypothesis.inner_test``). Its check for function-scoped fixtures is about state that one example leaves for
the next. Our fixtures drop theirs before each example, so they are not among the parameters while that check looks at
them; other fixtures are checked as always. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from _pytest.unittest import TestCaseFunction

from cudamem_testing.guards import place, replaced
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.calls import await_example, call_example
from cudamem_testing.plugin.items import is_foreign
from cudamem_testing.run.finished import clear_frames

if TYPE_CHECKING:
    from cudamem_testing.run.examples import Examples

Wrapper = Generator[None, object, object]
FIXTURES = "cudamem_testing.plugin.fixtures"
_PLAIN = frozenset({int, float, bool, complex, str, bytes, type(None)})
_LONGEST = 200


def is_given(item: pytest.Item) -> bool:
    """Whether hypothesis generates the arguments of a test; it says so of functions and of state machines."""
    body = getattr(item, "obj", None)
    return getattr(body, "is_hypothesis_test", False) is True and hasattr(body, "hypothesis")


class Given:
    """Runs the examples of such tests."""

    def __init__(self) -> None:
        self._show_parameters: Callable[[], object] = int

    @pytest.hookimpl(wrapper=True)  # inside of what judges the call; outside of hypothesis, which is registered earlier
    def pytest_runtest_call(self, item: pytest.Item) -> Wrapper:
        """Our fixtures are no parameters while hypothesis checks them."""
        __tracebackhide__ = is_foreign
        if not is_given(item):
            return (yield)
        with ExitStack() as stack:
            stack.enter_context(_explained_without_us())
            hidden = stack.enter_context(ExitStack())
            hidden.enter_context(_without_parameters(item.function, _our_fixtures(item)))  # type: ignore[attr-defined]
            self._show_parameters = hidden.close
            if isinstance(item, TestCaseFunction):  # pytest calls no hook for the method
                stack.enter_context(_region_for_each(item))
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Wrapper:
        """Each example is a region; hypothesis has looked at the parameters and now needs them all."""
        __tracebackhide__ = is_foreign
        if not is_given(pyfuncitem):
            return (yield)
        self._show_parameters()
        with _region_for_each(pyfuncitem):
            return (yield)


@contextmanager
def _without_parameters(function: Callable[..., object], names: Sequence[str]) -> Iterator[None]:
    """A function that says, while this lasts, that it has no parameters of some names."""
    if not names:
        yield
        return
    signature = inspect.signature(function)
    rest = [one for name, one in signature.parameters.items() if name not in names]
    restore = place([(function, "__signature__", signature.replace(parameters=rest))])
    try:
        yield
    finally:
        restore()


@contextmanager
def _explained_without_us() -> Iterator[None]:
    """Have hypothesis leave our lines out where it lists those that only failing examples ran."""
    with suppress(ImportError, AttributeError):
        from hypothesis.internal import scrutineer

        places = (*scrutineer.UNHELPFUL_LOCATIONS, "/cudamem_testing/**")
        with replaced([(scrutineer, "UNHELPFUL_LOCATIONS", places)]):
            yield
            return
    yield


def _our_fixtures(item: pytest.Item) -> list[str]:
    """The names of parameters that are fixtures of this package, and not somebody's of the same name."""
    info = getattr(item, "_fixtureinfo", None)
    if info is None:
        return []
    last = {name: found[-1].func for name, found in info.name2fixturedefs.items() if found}
    return [name for name in info.argnames if getattr(last.get(name), "__module__", None) == FIXTURES]


@contextmanager
def _region_for_each(item: pytest.Item) -> Iterator[None]:
    """Call the body of each example in a region, and judge it there."""
    __tracebackhide__ = True
    handle = item.obj.hypothesis  # type: ignore[attr-defined]
    inner = handle.inner_test
    body = Body(inner, item, _examples(item), inspect.signature(inner))
    handle.inner_test = body.wrapped()
    error: BaseException | None = None
    try:
        yield
        failed = getattr(item, "_excinfo", None)  # unittest keeps failures here instead of raising
        error = failed[-1].value if failed else None
    except BaseException as raised:
        error = raised
        raise
    finally:
        handle.inner_test = inner
        if body.examples is not None:
            body.examples.finish(error)
        error = None


def _examples(item: pytest.Item) -> Examples | None:
    """Those of a test that is measured."""
    session = item.config.stash.get(keys.SESSION, None)
    running = None if session is None else session.running
    if session is None or running is None:
        return None
    from hypothesis.errors import StopTest, UnsatisfiedAssumption

    from cudamem_testing.run.examples import Examples

    rejected = StopTest, UnsatisfiedAssumption
    examples = Examples(running, session.tracker, session.judge, session.policy, rejected, clear_frames)
    running.subject.examples = examples
    return examples


class Body(NamedTuple):
    """The body of a test, and the examples it is called for."""

    inner: Callable[..., Any]
    item: pytest.Item
    examples: Examples | None
    signature: inspect.Signature

    def wrapped(self) -> Callable[..., Any]:
        """What hypothesis calls in its place: of its name, source and parameters, and async if it is."""
        if inspect.iscoroutinefunction(self.inner):

            @functools.wraps(self.inner)
            async def example(*args: Any, **kwargs: Any) -> None:
                __tracebackhide__ = True
                await await_example(self.runs(args, kwargs), self.inner, args, kwargs)
        else:

            @functools.wraps(self.inner)
            def example(*args: Any, **kwargs: Any) -> Any:
                __tracebackhide__ = True
                return call_example(self.runs(args, kwargs), self.inner, args, kwargs)

        example.__signature__ = self.signature  # type: ignore[attr-defined]
        return example

    def runs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
        """The runs of the next example, and what is drawn in the first one for the second."""
        for reset in self.item.stash.get(keys.EACH_EXAMPLE, ()):
            reset()
        if self.examples is None:
            yield _UNMEASURED
            return
        fixtures = getattr(self.item, "fixturenames", ())
        arguments = self.signature.bind(*args, **kwargs).arguments
        drawn = {name: value for name, value in arguments.items() if name not in fixtures and name != "self"}
        draws = [Draws(value) for value in drawn.values() if _is_data(value)]
        for run in self.examples.runs(lambda: _described(drawn, draws)):
            for one in draws:
                one.again()
            _forget_targets()
            yield run
        for one in draws:
            one.end()


class _Unmeasured:
    """The only run of an example of a test that is not measured."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


_UNMEASURED = _Unmeasured()


class Draws:
    """What a test draws itself from ``data()``: a second run of its example gets the same values."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._draw = data.draw
        self.values: list[Any] = []
        self._next = 0
        data.draw = self._drawn

    def again(self) -> None:
        """A run begins."""
        self._next = 0

    def end(self) -> None:
        """The example is over."""
        del self._data.draw

    def _drawn(self, strategy: Any, label: Any = None) -> Any:
        if self._next == len(self.values):
            self.values.append(self._draw(strategy, label))
        self._next += 1
        return self.values[self._next - 1]


def _forget_targets() -> None:
    """Let a second run of an example call ``target`` with the same label; without this it counts as not repeatable."""
    with suppress(ImportError, AttributeError):
        from hypothesis.control import current_build_context

        current_build_context().data.target_observations.clear()


def _is_data(value: object) -> bool:
    from hypothesis.strategies import DataObject

    return type(value) is DataObject


def _described(arguments: dict[str, Any], draws: Sequence[Draws]) -> str:
    """Arguments in words: ``n=65, x=float32[3, 4] on cpu``. No code of their classes runs."""
    values = {id(one._data): tuple(one.values) for one in draws}
    parts = [f"{name}={_text(values.get(id(value), value))}" for name, value in arguments.items()]
    text = ", ".join(parts)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _text(value: object, depth: int = 2) -> str:
    from cudamem_testing.objects.names import key_text, name_of

    if type(value) in _PLAIN:
        return key_text(value)
    if depth and (type(value) is tuple or type(value) is list) and len(value) <= 8:
        items = ", ".join(_text(one, depth - 1) for one in value)
        return f"[{items}]" if type(value) is list else f"({items}{',' if len(value) == 1 else ''})"
    return name_of(value)
