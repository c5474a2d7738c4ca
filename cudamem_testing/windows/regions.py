"""Regions of a test: measured windows with budgets, and hard limits. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from cudamem_testing.model.churn import Churn
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.limits import Budget, Limit
from cudamem_testing.model.windows import Window
from cudamem_testing.recorders.base import Recorder
from cudamem_testing.safe_access import is_a, type_name
from cudamem_testing.show.printable import one_line
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.windows.judge import Judge
from cudamem_testing.windows.readings import Readings
from cudamem_testing.windows.spans import Span
from cudamem_testing.windows.tracker import Tracker
from cudamem_testing.wording.findings import texts

if TYPE_CHECKING:
    from cudamem_testing.model.churn import Churn

__tracebackhide__ = hide_wrong_arguments


#: Called with windows and findings; returns whether findings are enforced.
Tell = Callable[[Sequence[Window], Sequence[Finding]], bool]


class Region(Protocol):
    """A region that was entered."""

    def abandon(self) -> None:
        """End it silently."""
        ...


class Around(Protocol):
    """What regions belong to: it measures and judges, knows which are ``entered``, and gets their findings.

    ``place`` says what the name of a window begins with.
    """

    tracker: Tracker
    judge: Judge
    entered: list[Region]
    tell: Tell
    place: Callable[[], str]


#: Names of the windows that every test has.
PHASES = ("setup", "call", "teardown", "warm-up", "test")
NO_DECORATOR = "this is not a decorator: write `with cuda_memory.budget(...):` inside the function"


class Judged(AssertionError):  # noqa: N818 - the base of verdicts
    """A check found ``findings``; they are its text."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(texts(findings))
        self.findings = tuple(findings)


def not_in(error: BaseException | None, findings: Sequence[Finding]) -> list[Finding]:
    """The findings that an error does not show."""
    shown = error.findings if is_a(error, Judged) else ()
    return [finding for finding in findings if finding not in shown]


class OverBudget(Judged):
    """A budget was broken; ``findings`` says which."""


class NoDecorator:
    """A base of regions, which measure a block and not a function."""

    def __call__(self, *_: object) -> NoReturn:
        """Refuse to be a decorator: only one call of the function would be measured.

        Raises:
            TypeError: always.
        """
        raise TypeError(NO_DECORATOR)


class OpenWindow(NoDecorator, Readings):
    """A window that can be read while it is open (the numbers so far) and after its end (the final ones).

    Its attributes are those of :class:`~cudamem_testing.model.windows.Window` for the first measured device; index it
    with any spelling of a device for another one.
    """

    def __init__(self, memory: Around, name: str, budgets: Sequence[Budget] = ()) -> None:
        if not isinstance(name, str):  # it is written into reports
            raise TypeError(f"the name of a window is text, not {type_name(name)}")
        if name in PHASES or not name.strip():
            raise ValueError(f"a window cannot be called {name!r}: reports call a test's own {', '.join(PHASES)}")
        self._memory = memory
        self._name = one_line(name)
        self._budgets = tuple(budgets)
        self._span: Span | None = None
        self._final: tuple[Window, ...] | None = None

    def __enter__(self) -> OpenWindow:
        if self._span is not None:
            raise RuntimeError(f"window {self._name!r} was entered twice: make another one for each with block")
        self._span = self._memory.tracker.open(f"{self._memory.place()}{self._name}")
        self._memory.entered.append(self)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        __tracebackhide__ = True
        if self._span is None:
            raise RuntimeError(f"window {self._name!r} was left before it was entered")
        if self._final is not None:  # abandoned with its memory
            return
        self._final = self._memory.tracker.close(self._span)
        self._memory.entered.remove(self)
        broken = self._memory.judge.all(self._budgets, self._final)
        enforced = self._memory.tell(self._final, broken)
        if broken and kind is None and enforced:
            raise OverBudget(broken)

    @property
    def entered(self) -> bool:
        """Whether it has begun."""
        return self._span is not None

    @property
    def left(self) -> bool:
        """Whether it has ended."""
        return self._final is not None

    def abandon(self) -> None:
        """End it silently."""
        if self._span is not None and self._final is None:
            self._final = self._memory.tracker.close(self._span)

    @property
    def windows(self) -> tuple[Window, ...]:
        """One window per measured device."""
        if self._final is not None:
            return self._final
        if self._span is None:
            raise RuntimeError(f"window {self._name!r} has not begun")
        return self._memory.tracker.peek(self._span)

    def plot(self, path: str | Path, device: object = None) -> Path:
        """Draw the memory of the window over time, by line of code, into a PNG or SVG file; an open one up to now.

        In a test it works until the next one begins: then its events are dropped.

        Raises:
            ModuleNotFoundError: matplotlib is not installed (extra ``plot``).
            ValueError: for another ending, and where no events were recorded.
        """
        window = self._first if device is None else self[device]
        tracker = self._memory.tracker
        recorder = tracker.recorder(window.device)
        return self._memory.judge.draw((window,), tracker.read(recorder), path)

    def churn(self, device: object = None) -> Churn:
        """The lines that allocated blocks and freed them again at once in a loop; of an open window, up to now.

        In a test it works until the next one begins: then its events are dropped.

        Raises:
            ValueError: no events were recorded.
        """
        window = self._first if device is None else self[device]
        tracker = self._memory.tracker
        return self._memory.judge.churn((window,), tracker.read(tracker.recorder(window.device)))

    def __repr__(self) -> str:
        if self._span is None:
            return f"<window {self._name!r}, not entered>"
        return f"<window, {'open' if self._final is None else 'over'}: {'; '.join(map(str, self.windows))}>"


class Limited(NoDecorator):
    """A region in which the allocator refuses requests that would exceed a limit."""

    def __init__(self, memory: Around, size: int, recorders: Sequence[Recorder]) -> None:
        self._memory = memory
        self._size = size
        self._recorders = recorders
        self._lifts: list[Callable[[], None]] = []
        self._refused = False
        limits = [Limit("peak", size, device=recorder.device) for recorder in recorders]
        self._window = OpenWindow(memory, "limit", (Budget(tuple(limits), source="limit(...)"),))

    def __enter__(self) -> None:
        __tracebackhide__ = True
        try:
            with self._memory.tracker.turn:
                for recorder in self._recorders:
                    self._lifts.append(recorder.limit(self._size))
            self._window.__enter__()
        except BaseException:
            self._refused = True
            self._lift()
            raise
        self._memory.entered.append(self)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        __tracebackhide__ = True
        if self in self._memory.entered:
            self._memory.entered.remove(self)
        self._lift()
        self._window.__exit__(kind, error, traceback)

    @property
    def entered(self) -> bool:
        """Whether it has begun."""
        return self._window.entered

    @property
    def left(self) -> bool:
        """Whether it has ended, or could not begin, which was an error of its own."""
        return self._refused or self._window.left

    def abandon(self) -> None:
        """Lift the limit silently."""
        self._lift()
        self._window.abandon()

    def _lift(self) -> None:
        with self._memory.tracker.turn:
            while self._lifts:
                self._lifts.pop()()
