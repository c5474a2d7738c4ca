"""A block inside a test that judges its own cycles. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from cudamem_testing.cycles.collect import ReferenceCycles

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
