"""The time budget of a search.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from cudamem_testing.originals import Original


class Clock:
    """Tells whether this thread has worked a number of seconds since it was made; ``None`` never passes.

    Processor time, not wall time: a search on a busy machine then finds what it finds on an idle one.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else Original.thread_time() + seconds

    def expired(self) -> bool:
        """Whether the time is over."""
        return self._end is not None and Original.thread_time() >= self._end
