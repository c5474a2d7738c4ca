"""The time budget of a search.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import time


class Clock:
    """Tells whether a number of seconds has passed since it was made; ``None`` never passes."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.perf_counter() + seconds

    def expired(self) -> bool:
        """Whether the time is over."""
        return self._end is not None and time.perf_counter() >= self._end
