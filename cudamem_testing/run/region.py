"""Blocks inside a test that judge their own cycles. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from cudamem_testing.cycles.collect import ReferenceCycles
from cudamem_testing.model.entered import HandedOut

if TYPE_CHECKING:
    from cudamem_testing.cycles.draft import Question
    from cudamem_testing.cycles.watch import CycleWatch


class Region(ReferenceCycles):
    """A block whose cycles the check of the whole test ignores."""

    def __init__(self, outer: CycleWatch, question: Callable[[], Question | None]) -> None:
        super().__init__(question)
        self._outer = outer

    def __enter__(self) -> ReferenceCycles:
        super().__enter__()  # garbage from before the block is the test's
        self._outer.stop()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._outer.start()


class CycleBlocks:
    """Those of one test, as the fixture ``reference_cycles`` makes them."""

    def __init__(self, make: Callable[[], ReferenceCycles] | None) -> None:
        """``make`` makes a block of the test that is measured; ``None`` without one."""
        self._make: Callable[[], ReferenceCycles] = make or ReferenceCycles
        self.handed_out: HandedOut[ReferenceCycles] = HandedOut("reference_cycles()", ".assert_none()")

    def record(self) -> ReferenceCycles:
        """Make a block."""
        return self.handed_out.add(self._make())
