"""A region in which an allocation fails on purpose. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from cudamem_testing.model.failing import Trapped, Wanted
from cudamem_testing.model.sizes import count, format_size, parse_size
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.windows.regions import Around, Judged
from cudamem_testing.wording.recovery import of_sweep

if TYPE_CHECKING:
    from cudamem_testing.model.counters import Counters
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.failing import Sweep
    from cudamem_testing.model.stacks import RawFrame
    from cudamem_testing.recorders.base import Recorder, Trap

__tracebackhide__ = hide_wrong_arguments


class NothingFailed(AssertionError):  # noqa: N818 - the name of the verdict
    """No allocation failed in a region that should make one fail."""


class NotFreed(AssertionError):  # noqa: N818 - the name of the verdict
    """Memory of the first try was still allocated in the next one."""


class DoesNotRecover(Judged):
    """Allocations failed, and not everything was as before afterwards; ``sweep`` says what was tried."""

    def __init__(self, sweep: Sweep) -> None:
        super().__init__(sweep.findings)
        self.args = (of_sweep(sweep),)
        self.sweep = sweep


@dataclass(frozen=True, slots=True)
class FirstTry:
    """What was allocated before the failure and live at the peak after it; ``line`` is where the allocation failed."""

    line: str
    kept: int
    lines: tuple[str, ...] = ()


#: Finds it: the recorder, the counters at the start, how often and where an allocation failed.
TellFirstTry = Callable[["Recorder", "Counters", Trapped, "Sequence[RawFrame]"], "FirstTry | None"]


class FailAllocation:
    """A region in which the allocations that are :class:`~.model.failing.Wanted` fail.

    Numbers can be read inside and afterwards.
    """

    def __init__(self, memory: Around, recorder: Recorder, wanted: Wanted, tell: TellFirstTry | None = None) -> None:
        self._memory, self._recorder, self._wanted, self._tell = memory, recorder, wanted, tell
        self._trap: Trap | None = None
        self._start: Counters | None = None
        self._first_try: FirstTry | None = None
        self._left = False

    def __enter__(self) -> FailAllocation:
        if self._trap is not None:
            raise RuntimeError("fail_allocation(...) was entered twice: make another one for each with block")
        try:
            with self._memory.tracker.turn:
                self._start = self._memory.tracker.read(self._recorder)
                self._trap = self._recorder.trap(self._wanted)
        except BaseException:
            self._left = True
            raise
        self._memory.entered.append(self)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        __tracebackhide__ = True
        if self._trap is None:
            raise RuntimeError("fail_allocation(...) was left before it was entered")
        if self._left:
            return
        self.abandon()
        if self in self._memory.entered:
            self._memory.entered.remove(self)
        found = self._trap.look()
        if not found.failed and kind is None:
            seen = f"{count(found.requests, 'allocation')} {'was' if found.requests == 1 else 'were'} made"
            raise NothingFailed(f"cudamem: no allocation failed on {self.device}: {seen}, wanted was {self._wanted}")
        if found.failed and self._tell is not None and self._start is not None:
            self._first_try = self._tell(self._recorder, self._start, found, self._trap.frames())

    def __call__(self, *_: object) -> NoReturn:
        """Refuse to be a decorator.

        Raises:
            TypeError: always.
        """
        raise TypeError("this is not a decorator: write `with cuda_memory.fail_allocation(...):` inside the function")

    @property
    def entered(self) -> bool:
        """Whether it has begun."""
        return self._trap is not None

    @property
    def left(self) -> bool:
        """Whether it has ended, or could not begin, which was an error of its own."""
        return self._left

    def abandon(self) -> None:
        """Let allocations succeed again, silently."""
        self._left = True
        if self._trap is not None:
            self._trap.lift()

    @property
    def device(self) -> Device:
        """Where allocations fail."""
        return self._recorder.device

    @property
    def failed(self) -> int:
        """How many allocations failed so far."""
        return self._look().failed

    @property
    def number(self) -> int:
        """Which allocation failed last, counted from 1 since the region began; 0 if none did."""
        return self._look().number

    @property
    def size(self) -> int:
        """The bytes that it requested; on a card 0 if they are unknown."""
        return self._look().size

    @property
    def line(self) -> str:
        """The project's line that requested them; once the region has ended."""
        return self._told().line

    @property
    def kept(self) -> int:
        """Bytes that were allocated before the failure and live at the peak after it; once the region has ended."""
        return self._told().kept

    def assert_freed(self, ignore_below: object = 0) -> None:
        """Fail if memory that was allocated before the failure was still live at the peak after it.

        Raises:
            NotFreed: with the lines that allocated it.
            RuntimeError: before the region has ended, or if no events were recorded.
        """
        __tracebackhide__ = True
        told = self._told()
        if told.kept > parse_size(ignore_below):
            head = f"cudamem: {format_size(told.kept)} of the first try were live at the peak after it ({self.device})"
            failed = f"   failed: {format_size(self.size)} at {told.line}"
            raise NotFreed("\n".join((head, failed, *told.lines)))

    def _told(self) -> FirstTry:
        if self._first_try is None:
            missing = "no events are recorded here" if self._left else "read it after the region has ended"
            raise RuntimeError(f"what the first try left is unknown: {missing}")
        return self._first_try

    def _look(self) -> Trapped:
        if self._trap is None:
            raise RuntimeError("fail_allocation(...) has not begun")
        return self._trap.look()

    def __repr__(self) -> str:
        state = "not entered" if self._trap is None else f"{self.failed} failed"
        return f"<fail_allocation: {self._wanted}, {state}>"
