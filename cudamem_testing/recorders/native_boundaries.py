"""Keeps the readings of a test at the boundaries of its phases natively: one call for all devices at each of them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from cudamem_testing.model.counters import Counters


class NativeBoundaries:
    """The readings of one test after the other. ``sources`` are those of the recorders (:class:`~.base.Recorder`).

    ``names`` are two for each: of the growth of allocated bytes, and of reserved ones.
    No Python code runs while it reads, so nothing can happen between the readings of two devices. Not thread-safe.
    """

    __slots__ = ("counters", "gained", "grown", "key", "read")

    def __init__(self, library: ctypes.PyDLL, sources: Sequence[object], names: Sequence[str]) -> None:
        functions = library.cudamem_boundary_functions(tuple(sources), tuple(names), Counters)
        read, key, counters, grown, gained = functions
        self.read: Callable[[int], bool] = read
        """Read all devices at a boundary of a test by its number, from 0 on, again if it was read before. Returns
        whether each could be read; the others have to be read in Python."""
        self.key: Callable[[], bytes] = key
        """What was read in the test: equal for tests in which the same was read."""
        self.counters: Callable[[], Sequence[Sequence[Counters | None]]] = counters
        """For each boundary what was read of each device; ``None`` where that has to be done in Python."""
        self.grown: Callable[[], list[tuple[str, int]]] = grown
        """Names and bytes between the last two boundaries: the growth up to the peak, where it is known."""
        self.gained: Callable[[], Sequence[tuple[int | None, int | None]]] = gained
        """For each device the growth of its bytes and blocks from the first boundary to the last."""
