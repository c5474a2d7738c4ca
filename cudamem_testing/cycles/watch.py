"""Watching collections: the facts of each that finds garbage with tensors in it.

Facts alone are taken inside a collection; ``Cycle.worded`` finds the words for them later. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import builtins
import functools
import gc
import os
import time
from collections.abc import Callable
from ctypes import PyDLL
from functools import cache
from gc import DEBUG_SAVEALL, get_debug
from time import thread_time

from cudamem_testing.cycles.allocations import recorded_allocations
from cudamem_testing.cycles.explain import Draft, Question, explain
from cudamem_testing.cycles.results import Cycle
from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.stacks import Locator
from cudamem_testing.recorders.build import COLLECTOR_WATCH, load
from cudamem_testing.torch_api.tensors import TensorBase
from cudamem_testing.unfinalized import GarbageWatch


@cache
def library() -> PyDLL:
    """The native part of the watch, compiled if it never was.

    Raises:
        RecorderUnavailable: it cannot be had here.
    """
    return load(COLLECTOR_WATCH)


class CycleWatch:
    """Takes down the cycles that each collection finds from ``start`` to ``stop``.

    ``ask`` makes the question for a collection whose garbage has a tensor in it, or an instance of ``kind``; ``None``
    skips it. ``failed`` gets what went wrong with one. ``tell`` is called soon after a collection that found cycles,
    outside of it, in the main thread.
    """

    def __init__(
        self,
        ask: Callable[[], Question | None] | None = None,
        failed: Callable[[BaseException], None] | None = None,
        kind: type | None = None,
        tell: Callable[[], None] | None = None,
    ) -> None:
        self._ask = ask or (lambda: Question(locator, allocated=recorded_allocations(), kind=kind))
        locator = Locator(os.getcwd())
        #: Processor time that looking took so far.
        self.seconds = 0.0
        self._failed = failed
        self._tells = tell is not None
        self._drafts: list[tuple[Draft, bool]] = []
        self._found: list[list[Cycle]] = []
        kinds = (TensorBase if kind is None else kind,)
        self._watch = GarbageWatch(kinds, self._look, self._gone, self._note, tell)
        # Without methods around them: every test calls them.
        self.start: Callable[[], None] = self._start
        """Watch from here on. Raises ``RecorderUnavailable`` where the native part cannot be had, and
        ``CollectorUnreadableError`` where this build of Python cannot be watched."""
        self.stop: Callable[[], None] = self._watch.stop
        """Watch no longer."""

    def _start(self) -> None:
        with CollectorPaused():  # what is garbage already is to be seen
            self._watch.start(library(), (builtins, gc, os, time, functools))
        self.start = functools.partial(self._watch.start, library())

    @property
    def missed(self) -> int:
        """Collections until the last stop that were not looked at."""
        return self._watch.missed

    def take(self) -> list[list[Cycle]]:
        """What each collection found since the last call, not yet in words."""
        found, self._found = self._found, []
        return found

    def _look(self, garbage: list[object]) -> bool:
        start = thread_time()
        question = self._ask()
        draft = None if question is None else explain(garbage, question)
        self.seconds += thread_time() - start
        if not draft:
            return False
        self._drafts = [*self._drafts, (draft, bool(get_debug() & DEBUG_SAVEALL))]
        return True

    def _gone(self) -> bool:
        found = [*filter(None, (draft.settled(freed=not kept) for draft, kept in self._drafts))]
        # No signal's handler comes between these: it would have this begin again, or lose what was found.
        self._drafts, self._found = [], self._found + found
        return bool(found) and self._tells

    def _note(self, error: BaseException) -> None:
        if self._failed is None:
            raise error
        self._failed(error)
