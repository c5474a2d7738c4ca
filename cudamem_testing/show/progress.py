"""Tells how far long work has come: a line at most every two seconds, none for work that ends within the first.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import time
from collections.abc import Callable

QUIET, EVERY = 1.0, 2.0
"""Seconds without a line at the start, and between two lines."""


class Progress:
    """``say`` gets the lines; ``clock`` gives seconds."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._next = clock() + QUIET
        self._what = ""

    def step(self, what: str) -> None:
        """The next piece of work begins, such as ``replaying 1,000,000 events``."""
        self._what = what
        self.at(None)

    def at(self, share: float | None) -> None:
        """The current piece has come so far, from 0 to 1; ``None`` where that is unknown."""
        now = self._clock()
        if now >= self._next:
            self._next = now + EVERY
            self._say(self._what if share is None else f"{self._what}: {100 * share:.0f} %")
