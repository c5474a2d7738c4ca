"""Tells how far long work has come: a line when it begins, and one at most every two seconds.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY = 2.0
"""Seconds between two lines."""


class Progress:
    """``say`` gets the lines; ``clock`` gives seconds."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._next = clock() + EVERY
        self._what = ""

    def step(self, what: str, *, long: bool) -> None:
        """The next step begins, such as ``replaying 1,000,000 events``; one that takes ``long`` is announced."""
        self._what = what
        self._next = self._clock() + EVERY
        if long:
            self._say(what)

    def at(self, share: float) -> None:
        """The current piece has come so far, from 0 to 1."""
        now = self._clock()
        if now >= self._next:
            self._next = now + EVERY
            self._say(f"{self._what}: {100 * share:.0f} %")
