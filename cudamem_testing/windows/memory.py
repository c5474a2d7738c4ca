"""Windows, budgets and hard limits, inside a test or without pytest.

.. code-block:: python

    with Memory.on("auto") as memory:
        with memory.window("decode") as window:
            model.generate(...)
        print(window.peak_growth)

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import parse_selection
from cudamem_testing.model.entered import Blocks, NotEnteredError
from cudamem_testing.model.findings import Finding
from cudamem_testing.model.growth import Growth
from cudamem_testing.model.limits import Budget, Limit
from cudamem_testing.model.limits import budget as parse_limits
from cudamem_testing.model.scaling import Scaling
from cudamem_testing.model.sizes import count, parse_size
from cudamem_testing.model.windows import Window
from cudamem_testing.recorders.base import Recorder
from cudamem_testing.recorders.choose import Recorders, missing
from cudamem_testing.show.printable import one_line
from cudamem_testing.show.usage import hide_wrong_arguments, refuse_unknown
from cudamem_testing.static import type_name
from cudamem_testing.windows.grow import Explain, measure_growth
from cudamem_testing.windows.judge import Judge
from cudamem_testing.windows.readings import Readings
from cudamem_testing.windows.scale import Lines, measure_scaling
from cudamem_testing.windows.tracker import Span, Tracker

__tracebackhide__ = hide_wrong_arguments

R = TypeVar("R", bound="OpenWindow | Limited")
#: Names of the windows that every test has.
PHASES = ("setup", "call", "teardown", "warm-up", "test")
NO_DECORATOR = "this is not a decorator: write `with cuda_memory.budget(...):` inside the function"


class OverBudget(AssertionError):  # noqa: N818 - the name of the verdict
    """A budget was broken; ``findings`` says which."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        from cudamem_testing.wording import texts

        super().__init__(texts(findings))
        self.findings = tuple(findings)


class OpenWindow(Readings):
    """A window that can be read while it is open (the numbers so far) and after its end (the final ones).

    Its attributes are those of :class:`~cudamem_testing.model.windows.Window` for the first measured device; index it
    with any spelling of a device for another one.
    """

    def __init__(self, memory: Memory, name: str, budgets: Sequence[Budget] = ()) -> None:
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

    def __call__(self, *_: object) -> NoReturn:
        """Refuse to be a decorator: only one call of the function would be measured.

        Raises:
            TypeError: always.
        """
        raise TypeError(NO_DECORATOR)

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

    def __repr__(self) -> str:
        if self._span is None:
            return f"<window {self._name!r}, not entered>"
        return f"<window, {'open' if self._final is None else 'over'}: {'; '.join(map(str, self.windows))}>"


class Limited:
    """A region in which the allocator refuses requests that would exceed a limit."""

    def __init__(self, memory: Memory, size: int, recorders: Sequence[Recorder]) -> None:
        self._memory = memory
        self._size = size
        self._recorders = recorders
        self._lifts: list[Callable[[], None]] = []
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
            self._lift()
            raise
        self._memory.entered.append(self)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        __tracebackhide__ = True
        if self in self._memory.entered:
            self._memory.entered.remove(self)
        self._lift()
        self._window.__exit__(kind, error, traceback)

    def __call__(self, *_: object) -> NoReturn:
        """Refuse to be a decorator.

        Raises:
            TypeError: always.
        """
        raise TypeError(NO_DECORATOR)

    @property
    def entered(self) -> bool:
        """Whether it has begun."""
        return self._window.entered

    @property
    def left(self) -> bool:
        """Whether it has ended."""
        return self._window.left

    def abandon(self) -> None:
        """Lift the limit silently."""
        self._lift()
        self._window.abandon()

    def _lift(self) -> None:
        with self._memory.tracker.turn:
            while self._lifts:
                self._lifts.pop()()


class Memory:
    """Windows, budgets and hard limits over a tracker.

    ``told`` is called with each window that ends, and with the findings of a budget that it broke; it returns whether
    the budget is enforced. ``name`` is its name in the code, ``place`` what the name of each window begins with,
    ``ranks`` has processes measured that start inside a block.
    """

    records = False
    """Whether stacks and events are recorded, for evidence."""

    def __init__(
        self,
        tracker: Tracker,
        told: Callable[[Sequence[Window], Sequence[Finding]], bool] | None = None,
        judge: Judge | None = None,
        explain_growth: Explain | None = None,
        lines: Lines | None = None,
        name: str = "memory",
        place: Callable[[], str] = str,
        ranks: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self.judge = judge or Judge()
        self._explain_growth = explain_growth
        self._lines = lines
        self.tracker = tracker
        self.place = place
        self._ranks = ranks
        self.tell = told or (lambda windows, findings: True)
        self.entered: list[OpenWindow | Limited] = []
        self.blocks = Blocks()
        self._name = name

    @classmethod
    @contextmanager
    def on(cls, device: str = "auto") -> Iterator[Memory]:
        """Measure a selection of devices (as ``--cudamem-device``) inside the context.

        Raises:
            ValueError: for an unknown device, and for one that is not on this machine.
            NotEnteredError: at the end, if a window, a budget or a limit was created but not entered, or not left.
        """
        recorders = Recorders(parse_selection(device), record=cls.records)
        try:
            opened = recorders.open()
            if not opened:
                raise ValueError(missing(device if isinstance(device, str) else str(device)))
            for recorder in opened:
                recorder.wake(limited=True)
                recorder.boundary()  # what is measured begins here
            tracker = Tracker(opened)
            memory = cls(tracker, judge=cls.judge_of(tracker), lines=cls.lines_of(tracker))
            try:
                yield memory
            finally:
                problems = memory.close()
            if problems:
                raise NotEnteredError("\n".join(problems))
        finally:
            recorders.close()

    @classmethod
    def judge_of(cls, tracker: Tracker) -> Judge:
        """The judge of a tracker's budgets."""
        return Judge()

    @classmethod
    def lines_of(cls, tracker: Tracker) -> Lines | None:
        """Finds the lines at the peak of a window; ``None`` if nothing is recorded."""
        return None

    def __repr__(self) -> str:
        devices = ", ".join(str(one.device) for one in self.tracker.recorders) or "nothing"
        inside = f", inside {count(len(self.entered), 'region')}" if self.entered else ""
        return f"<{self._name}: measures {devices}{inside}>"

    def close(self) -> list[str]:
        """End regions that were entered and never left, so that no limit outlives its test.

        Returns a line for each of them, and for each that was not entered, because they checked nothing.
        """
        problems = self.blocks.problems
        self.blocks.clear()
        while self.entered:
            self.entered.pop().abandon()
        return problems

    def window(self, name: str) -> OpenWindow:
        """Measure a region: ``with memory.window("decode") as window``. Windows nest.

        Raises:
            ValueError: for an empty name, and a name of a test's own windows.
        """
        return self._made(OpenWindow(self, name), "window")

    def budget(
        self,
        *,
        peak: object = None,
        reserved: object = None,
        retained: object = None,
        allocations: object = None,
        retries: object = None,
        at_least: object = None,
        device: object = None,
        absolute: bool = False,
        name: str = "budget",
        **unknown: object,
    ) -> OpenWindow:
        """Measure a region and hold it to limits, which may be computed at run time (``peak=3 * param_bytes``).

        The arguments are those of the marker ``memory_budget``. The region raises :class:`OverBudget` at its end when
        a limit is broken; other exceptions from inside pass unchanged.

        Raises:
            LimitError: for wrong arguments.
            TypeError: for unknown ones.
            ValueError: for a name that :meth:`window` refuses.
        """
        refuse_unknown(self.budget, unknown)
        limits = parse_limits(
            peak=peak,
            reserved=reserved,
            retained=retained,
            allocations=allocations,
            retries=retries,
            at_least=at_least,
            device=device,
            absolute=absolute,
            source="budget(...)",
        )
        return self._made(OpenWindow(self, name, (limits,)), "budget")

    def limit(self, size: object, device: object = None) -> Limited:
        """Fail allocations that would take more than ``size`` bytes above the current level.

        They raise ``torch.OutOfMemoryError`` at the allocating line. On CPU the limit is exact and holds for every
        thread; on CUDA the allocator enforces it when it needs another segment, and an excess within existing
        segments is found at the end of the region, which then raises :class:`OverBudget`. Limits nest; the earlier one
        is restored afterwards, in any order, also after an error.

        Raises:
            ValueError: for a malformed size or device, or a device that is not measured.
        """
        bytes_ = parse_size(size)
        return self._made(Limited(self, bytes_, self.tracker.chosen(device)), "limit")

    def growth(self, step: Callable[[], object], steps: int = 20, warmup: int = 3, device: object = None) -> Growth:
        """Measure whether a repeated step keeps memory: ``memory.growth(lambda: train(batch)).assert_plateau()``.

        Raises:
            ValueError: for fewer than 4 steps, or a device that is not measured.
        """
        recorder = self.tracker.chosen(device)[0]
        return measure_growth(self.tracker, recorder, step, steps, warmup, self._explain_growth)

    def scaling(
        self,
        function: Callable[..., object],
        sizes: Sequence[int] | None = None,
        *,
        device: object = None,
        **variables: Sequence[int] | None,
    ) -> Scaling:
        """How the peak grows with the input: ``memory.scaling(attend, [256, 512, 1024]).assert_peak("O(n)")``.

        The function is called with each size. With variables it is called by name,
        ``memory.scaling(step, batch=[1, 2, 4], sequence=[128, 256, 512])``: one is varied at a time, the others at
        their smallest. Sizes that are ``None`` are chosen.

        Raises:
            ValueError: for fewer than three sizes, sizes that do not rise, or a device that is not measured.
            RuntimeError: if the peak of the device is unknown.
        """
        if sizes is not None and variables:
            raise ValueError(f"sizes and {', '.join(variables)} were given: write sizes=, or variables by name")
        recorder = self.tracker.chosen(device)[0]
        chosen = variables or {"n": sizes}
        return measure_scaling(self.tracker, recorder, function, chosen, self._lines, named=bool(variables))

    def ranks(self) -> AbstractContextManager[None]:
        """Measure processes that start inside the block with ``subprocess`` and ask for it, such as those of torchrun.

        They ask with ``with cudamem_testing.rank():``; what they took and left is in the report of the test. Processes
        of ``multiprocessing`` need neither.

        Raises:
            RuntimeError: outside of a test that is measured.
        """
        if self._ranks is None:
            raise RuntimeError("ranks() needs a measured test: use the fixture cuda_memory")
        return self._ranks()

    def statistics(self, device: object = None) -> Counters:
        """The counters of a device (of the first measured one by default); zeros before CUDA is initialised."""
        recorder = self.tracker.chosen(device)[0]
        return self.tracker.read(recorder)

    def _made(self, block: R, verb: str) -> R:
        self.blocks.add(block, f"{self._name}.{verb}(...)")
        return block
