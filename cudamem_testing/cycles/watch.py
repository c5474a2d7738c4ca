"""Watches garbage collections and takes the facts of each that finds garbage with tensors.

Only facts are taken inside a collection; ``source.worded`` makes text of them later. The code that takes them is
imported when the first watch begins. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import builtins
import functools
import gc
import os
import time
from collections.abc import Callable, Iterable, Sequence
from gc import DEBUG_SAVEALL, get_debug
from time import thread_time
from types import ModuleType
from typing import TYPE_CHECKING

from cudamem_testing.cycles.native import device_numbers, library
from cudamem_testing.guards.imports import import_whole, own_imports
from cudamem_testing.torch_api.tensors import TensorBase, check_stored_memory, implementation_offset, parameter_class
from cudamem_testing.unfinalized import Count, Counting, GarbageWatch, Moment, Part, Unread

if TYPE_CHECKING:
    from cudamem_testing.cycles.draft import Draft, Question
    from cudamem_testing.cycles.later import Record
    from cudamem_testing.cycles.memory import Memory
    from cudamem_testing.cycles.results import Cycle


_loaded: list[ModuleType] = []


def _prepare(*, draws: bool) -> None:
    """Import what takes facts, and what draws them: it takes tens of milliseconds, which no collection may."""
    if not _loaded:
        from cudamem_testing.cycles import allocations, explain, memory

        _loaded.extend((explain, allocations, memory))
    if draws:
        from cudamem_testing.cycles import draw, recorded

        _loaded.extend((draw, recorded))


class CycleWatch:
    """Records the cycles that each collection finds from ``start`` to ``stop``.

    ``ask`` makes the question for a collection whose garbage has a tensor, or an instance of ``kind``; ``None`` skips
    it. ``failed`` gets the error of a failed one. ``tell`` is called soon after a collection that found cycles, outside
    of it, in the main thread. With ``draws``, questions may have cycles drawn.
    """

    def __init__(
        self,
        ask: Callable[[], Question | None] | None = None,
        failed: Callable[[BaseException], None] | None = None,
        kind: type | None = None,
        tell: Callable[[], None] | None = None,
        *,
        draws: bool = True,
    ) -> None:
        self._draws = draws
        self._ask = ask or functools.partial(_every_tensor, os.getcwd(), kind)
        #: Processor time spent on examining garbage so far.
        self.seconds = 0.0
        self._failed = failed
        self._tells = tell is not None
        self._counted: Callable[[], int] = int
        self._drafts: list[tuple[int, Draft, bool]] = []
        self._found: list[tuple[int, Draft]] = []
        self._memory: Memory | None = None
        kinds = (TensorBase if kind is None else kind,)
        self._watch = GarbageWatch(kinds, self._look, self._gone, self._note, tell, self._recognise)
        # Without methods around them: every test calls them.
        self.start: Callable[[], None] = self._start
        """Start watching. Raises ``RecorderUnavailable`` without the native part, ``TorchLacksError`` if torch cannot
        tell what is freed, and ``CollectorUnreadableError`` if this build of Python cannot be watched."""
        self.stop: Callable[[], bool] = self._watch.stop
        """Stop watching; returns whether there may be something to take."""
        self.unshown: Callable[[], int] = int
        """Bytes that were counted and not examined."""

    def _start(self) -> None:
        check_stored_memory()
        import_whole(__package__.partition(".")[0])  # examining imports, and must not meet a partly imported module
        with own_imports():  # garbage that exists already counts
            _prepare(draws=self._draws)
            self._watch.start(library(), (builtins, gc, os, time, functools))
        self.start = functools.partial(self._watch.start, library())
        self.unshown = library().cudamem_collector_unshown

    def counting(self, functions: tuple[int, int], cards: Iterable[str] = ()) -> Counting | None:
        """Have only garbage examined that may keep much.

        Each kind is examined once; the blocks of further garbage are counted. ``functions`` are the addresses of the
        CPU recorder's functions that find a block and what an owner has, zeros without it, ``cards`` the names of the
        other devices that count. ``None`` if the layout of tensors is unknown, or cards are not counted in C++ (before
        2.9): each collection then reads which blocks they have.
        """
        offset, numbers = implementation_offset(), device_numbers(cards)
        if offset is None or (numbers and not library().cudamem_collector_counts_cards()):
            return None
        self._counted = library().cudamem_collector_counted
        return self._watch.counting(library(), functions, offset, parameter_class(), numbers)

    def has_time(self) -> None:
        """Say that collections may take long, because no code of a test waits for them, until counting begins again."""
        self._watch.has_time()

    @staticmethod
    def left() -> float:
        """Seconds of processor time that reading the garbage of this collection may still take."""
        return float(library().cudamem_collector_left()) / 1000

    def unread(self) -> Unread:
        """What was not read since counting began."""
        return self._watch.unread()

    def look_at_all(self) -> None:
        """Stop counting."""
        self._watch.look_at_all()

    @property
    def missed(self) -> int:
        """Collections until the last stop that were not examined."""
        return self._watch.missed

    def take(self, record: Callable[[Sequence[Moment]], Record] | None = None) -> list[list[Cycle]]:
        """What each collection found since the last call, before it is text, with what was counted.

        ``record`` makes what tells the blocks of cards at some moments.
        """
        drafts, self._found = self._found, []
        found = [(number, cycles) for number, draft in drafts if (cycles := draft.cycles())]
        self._watch.ran = False
        counts: Sequence[Count] = self._watch.counts() if self._counted() else ()
        every = found
        if record is not None and (any(draft.later for _, draft in drafts) or any(one.device for one in counts)):
            from cudamem_testing.cycles import later

            read = record(self._watch.moments())
            locators = {number: draft.later for number, draft in drafts}
            every = [
                (
                    number,
                    cycles if (locator := locators[number]) is None else later.placed(read, number, cycles, locator),
                )
                for number, cycles in found
            ]
            found = [
                (number, kept)
                for number, cycles in every
                if (kept := cycles if locators[number] is None else later.own(read, number, cycles))
            ]
            counts = [*later.own_counts(read, counts, self._watch.addresses())]
        together = [cycles for _, cycles in found] if found else []
        if counts:
            from cudamem_testing.cycles.counted import with_counted

            together = with_counted(found, counts, {} if self._memory is None else self._memory.shown, every)
        if every and self._memory is not None:
            self._memory.keep(every)
        return together

    def _look(self, garbage: list[object], parts: Sequence[Part]) -> bool:
        start = thread_time()
        question = self._ask()
        draft = None if question is None else _loaded[0].explain(garbage, question, parts)
        if question is not None:
            self._memory = question.memory
        self.seconds += thread_time() - start
        if not draft:
            return False
        number = library().cudamem_collector_seen()
        self._drafts = [*self._drafts, (number, draft, bool(get_debug() & DEBUG_SAVEALL))]
        return True

    def _recognise(self, garbage: list[object], fingerprint: int) -> bool:
        start = thread_time()
        known = self._memory is not None and self._memory.recognises(garbage, fingerprint)
        self.seconds += thread_time() - start
        return known

    def _gone(self) -> bool:
        found = [(number, draft) for number, draft, kept in self._drafts if draft.settle(freed=not kept)]
        # No signal handler may run between these: it would repeat this, or lose what was found.
        self._drafts, self._found = [], self._found + found
        return bool(found) and self._tells

    def _note(self, error: BaseException) -> None:
        if self._failed is None:
            raise error
        self._failed(error)


def _every_tensor(root: str, kind: type | None) -> Question:
    from cudamem_testing.cycles.draft import Question
    from cudamem_testing.cycles.recorded import recorded_allocations
    from cudamem_testing.model.stacks import Locator

    return Question(Locator(root), allocated=recorded_allocations(), kind=kind)
