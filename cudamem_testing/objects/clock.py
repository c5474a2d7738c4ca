"""The time limit of a search.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from cudamem_testing.originals import Original


class Clock:
    """Expires when this thread has used a number of seconds of processor time; ``None`` never expires.

    Processor time, not wall time: a search on a busy machine then finds what it finds on an idle one.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else Original.thread_time() + seconds

    def expired(self) -> bool:
        """Whether the time is used up."""
        return self._end is not None and Original.thread_time() >= self._end
