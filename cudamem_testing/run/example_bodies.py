"""Bodies of hypothesis tests: called once or twice for each example, with the same drawn values, each in a region.

The body that hypothesis calls is replaced while the test runs, through the attribute that hypothesis documents for
plugins (``hypothesis.inner_test``). PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import stateful
from hypothesis.control import current_build_context
from hypothesis.errors import StopTest, UnsatisfiedAssumption
from hypothesis.strategies import DataObject

from cudamem_testing.guards import place, replaced
from cudamem_testing.objects.names import key_text, name_of
from cudamem_testing.run.calls import Runs, await_example, call_example
from cudamem_testing.run.examples import Examples
from cudamem_testing.run.finished import clear_frames

if TYPE_CHECKING:
    from cudamem_testing.run.session import Session

try:
    from hypothesis.internal import scrutineer
except ImportError:  # it is hypothesis' own
    scrutineer = None  # type: ignore[assignment]

_PLAIN = frozenset({int, float, bool, complex, str, bytes, type(None)})
_LONGEST = 200


def examples_of(session: Session | None) -> Examples | None:
    """Those of the running test, which it now owns; ``None`` if no test is being measured."""
    running = None if session is None else session.running
    if session is None or running is None:
        return None
    rejected = StopTest, UnsatisfiedAssumption
    examples = Examples(running, session.tracker, session.judge, session.policy, rejected, clear_frames)
    running.subject.examples = examples
    return examples


class Body(NamedTuple):
    """The body of a test, and the examples it is called for.

    ``fixtures`` are the names of its parameters that hypothesis does not draw; ``resets`` run before each example.
    """

    inner: Callable[..., Any]
    examples: Examples | None
    fixtures: Collection[str]
    resets: Iterable[Callable[[], object]]
    signature: inspect.Signature
    of_machine: bool = False

    @contextmanager
    def placed(self, handle: Any, failure: Callable[[], BaseException | None]) -> Iterator[None]:
        """Have hypothesis call it in regions while this lasts; ``failure`` returns an error that was not raised."""
        __tracebackhide__ = True
        handle.inner_test = self.wrapped()
        try:
            with _finished(self.examples, failure):
                yield
        finally:
            handle.inner_test = self.inner

    def wrapped(self) -> Callable[..., Any]:
        """What hypothesis calls in its place: with its name, source and parameters, and async if it is."""
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

    def runs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Runs:
        """The runs of the next example; the second gets the values that were drawn in the first."""
        for reset in self.resets:
            reset()
        if self.examples is None:
            yield _UNMEASURED
            return
        arguments = self.signature.bind(*args, **kwargs).arguments
        drawn = {name: value for name, value in arguments.items() if name not in self.fixtures and name != "self"}
        if self.of_machine:
            draws: list[Draws] = [Steps(value) for value in drawn.values()]
            described = draws[0].text
        else:
            draws = [Draws(value) for value in drawn.values() if type(value) is DataObject]
            described = partial(_described, drawn, draws)
        for run in self.examples.runs(described):
            for one in draws:
                one.again()
            _forget_targets()
            yield run
        for one in draws:
            one.end()


_UNMEASURED: AbstractContextManager[None] = nullcontext()


@contextmanager
def machine_placed(examples: Examples | None, failure: Callable[[], BaseException | None]) -> Iterator[None]:
    """Have hypothesis run the examples of a state machine in regions while this lasts."""
    __tracebackhide__ = True
    make = stateful.get_state_machine_test

    def made(*args: Any, **kwargs: Any) -> Any:
        test: Any = make(*args, **kwargs)
        inner = test.hypothesis.inner_test
        body = Body(inner, examples, (), (), inspect.signature(inner), of_machine=True)
        test.hypothesis.inner_test = body.wrapped()
        return test

    with replaced([(stateful, "get_state_machine_test", made)]), _finished(examples, failure):
        yield


@contextmanager
def _finished(examples: Examples | None, failure: Callable[[], BaseException | None]) -> Iterator[None]:
    """Finish the examples at the end, with the error that it raised or that ``failure`` returns."""
    __tracebackhide__ = True
    error: BaseException | None = None
    try:
        yield
        error = failure()
    except BaseException as raised:
        error = raised
        raise
    finally:
        if examples is not None:
            examples.finish(error)
        error = None


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

    def text(self) -> str:
        """What was drawn, in words."""
        return _text(tuple(self.values))

    def _drawn(self, strategy: Any, label: Any = None) -> Any:
        if self._next == len(self.values):
            self.values.append(self._draw(strategy, label))
        self._next += 1
        return self.values[self._next - 1]


class Steps(Draws):
    """What a state machine draws: whether to stop, and rules with their arguments."""

    def __init__(self, data: Any) -> None:
        self._inside = False
        source = data.conjecture_data
        self._draw_boolean = source.draw_boolean
        super().__init__(source)
        source.draw_boolean = self._drawn_boolean

    def end(self) -> None:
        super().end()
        del self._data.draw_boolean

    def text(self) -> str:
        """The names of the rules, in their order."""
        names = [str(value[0].function.__name__) for value in self.values if type(value) is tuple]
        return _shortened(", ".join(names))

    def _drawn(self, *args: Any, **kwargs: Any) -> Any:
        return self._once(partial(self._draw, *args, **kwargs))

    def _drawn_boolean(self, *args: Any, **kwargs: Any) -> Any:
        return self._once(partial(self._draw_boolean, *args, **kwargs))

    def _once(self, draw: Callable[[], Any]) -> Any:
        """The drawn value of an earlier run, or a new one; strategies draw their parts as always."""
        if self._inside:
            return draw()
        if self._next == len(self.values):
            self._inside = True
            try:
                self.values.append(draw())
            finally:
                self._inside = False
        self._next += 1
        return self.values[self._next - 1]


@contextmanager
def without_parameters(function: Callable[..., object], names: Sequence[str]) -> Iterator[None]:
    """Hide parameters of some names from the signature of a function while this lasts."""
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
def explained_without_us() -> Iterator[None]:
    """Have hypothesis omit our lines where it lists those that only failing examples ran."""
    with suppress(AttributeError):
        places = (*scrutineer.UNHELPFUL_LOCATIONS, "/cudamem_testing/**")
        with replaced([(scrutineer, "UNHELPFUL_LOCATIONS", places)]):
            yield
            return
    yield


def _forget_targets() -> None:
    """Let a second run of an example call ``target`` with the same label; hypothesis refuses a repeated one."""
    with suppress(AttributeError):
        current_build_context().data.target_observations.clear()


def _described(arguments: dict[str, Any], draws: Sequence[Draws]) -> str:
    """Arguments in words: ``n=65, x=float32[3, 4] on cpu``. No code of their classes runs."""
    values = {id(one._data): tuple(one.values) for one in draws}
    parts = [f"{name}={_text(values.get(id(value), value))}" for name, value in arguments.items()]
    return _shortened(", ".join(parts))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _text(value: object, depth: int = 2) -> str:
    if type(value) in _PLAIN:
        return key_text(value)
    if depth and (type(value) is tuple or type(value) is list) and len(value) <= 8:
        items = ", ".join(_text(one, depth - 1) for one in value)
        return f"[{items}]" if type(value) is list else f"({items}{',' if len(value) == 1 else ''})"
    return name_of(value)
