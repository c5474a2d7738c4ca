"""Makes operators on a card fail: its allocator cannot be made to refuse one request.

Each operator that allocates counts as one allocation. After a run that was only counted, an operator fails before it
begins; without one it has run when it fails: its result is dropped, and what it wrote in place stays.

Importing this module imports torch. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from cudamem_testing.model.failing import Trapped, Wanted
from cudamem_testing.recorders.base import AllocatingCall, Taken
from cudamem_testing.recorders.lines import ends_with
from cudamem_testing.torch_api.dispatch import DispatchMode, operator_name

if TYPE_CHECKING:
    from cudamem_testing.model.stacks import RawFrame

DEPTH = 64
TEXT = "CUDA out of memory. Tried to allocate memory"
#: Wrappers that torch puts around the call of a mode.
_AROUND = ("torch/_dynamo/eval_frame.py", "torch/_compile.py", "recorders/dispatch_trap.py")


class DispatchTrap:
    """Fails operators by a dispatch mode, on this thread and in its backward passes. ``after`` is a counted run."""

    def __init__(self, taken: Callable[[], Taken], wanted: Wanted, after: DispatchTrap | None = None) -> None:
        self.calls: list[AllocatingCall] = []
        self._taken, self._wanted = taken, wanted
        self._failed = Trapped()
        self._frames: Sequence[RawFrame] = ()
        self._numbers: list[int] = []
        self._begun = self._counted = 0
        self._start = taken().number
        self._planned: int | None = None
        if after is not None and wanted.nth is not None and wanted == Wanted(nth=wanted.nth):
            self._planned = next(iter(after._numbers[wanted.nth - 1 : wanted.nth]), None)
        self._mode: _Mode | None = _Mode(self)
        self._mode.__enter__()

    def look(self) -> Trapped:
        """What it has met so far."""
        return self._failed._replace(requests=len(self.calls))

    def frames(self) -> Sequence[RawFrame]:
        """The frames of the last operator that failed."""
        return self._frames

    def lift(self) -> None:
        """Remove it."""
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an operator, or fail."""
        self._begun += 1
        number = self._begun
        if number == self._planned:
            self._fail(func, 0, [*_frames(sys._getframe())])
        before = self._taken()
        result = func(*args, **kwargs)
        after = self._taken()
        if after.number > before.number:
            size = after.bytes - before.bytes
            frames = [*_frames(sys._getframe())]
            self.calls.append(AllocatingCall(operator_name(func), size, frames, after.number - before.number))
            self._numbers.append(number)
            if self._planned is None and self._is_wanted(size, frames):
                del result
                self._fail(func, size, frames)
        return result

    def _is_wanted(self, size: int, frames: Sequence[RawFrame]) -> bool:
        above, nth, at = self._wanted.above, self._wanted.nth, self._wanted.at
        if self._wanted == Wanted() or (above is not None and size <= above):
            return False
        if at is not None and not any(line == at[1] and ends_with(file, at[0]) for file, line, _ in frames):
            return False
        self._counted += 1
        return nth is None or self._counted == nth

    def _fail(self, func: Any, size: int, frames: Sequence[RawFrame]) -> None:
        self._frames = frames
        at = self._wanted.nth if self._planned is not None else len(self.calls)
        self._failed = Trapped(0, self._failed.failed + 1, at or 0, size, self._taken().number - self._start)
        when = "before" if self._planned is not None else "after"
        raise torch.OutOfMemoryError(f"{TEXT} (made to fail by cudamem, {when} {operator_name(func)})")


def counting(taken: Callable[[], Taken]) -> DispatchTrap:
    """A trap that makes nothing fail."""
    return DispatchTrap(taken, Wanted())


class _Mode(DispatchMode):
    def __init__(self, trap: DispatchTrap) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trap = trap

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._trap.call(func, args, kwargs or {})


def _frames(frame: FrameType | None) -> Iterator[RawFrame]:
    """The frames around the trap and the mode; a thread of autograd has no others."""
    while frame is not None and frame.f_code.co_filename.replace("\\", "/").endswith(_AROUND):
        frame = frame.f_back
    for _ in range(DEPTH):
        if frame is None:
            return
        code = frame.f_code
        yield code.co_filename, frame.f_lineno or 0, getattr(code, "co_qualname", code.co_name)
        frame = frame.f_back
