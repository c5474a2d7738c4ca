"""Watching collections: which of them find garbage with tensors in it, which is then explained.

A watch is at work during every test, and most garbage has no tensor in it: what explains is imported for the first that
has one. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cudamem_testing import static
from cudamem_testing.cycles.older import held_by
from cudamem_testing.guards import GarbageWatch
from cudamem_testing.torch_api.tensors import TensorBase

if TYPE_CHECKING:
    from cudamem_testing.cycles.explain import Draft, Question
    from cudamem_testing.cycles.results import Cycle


class CycleWatch:
    """Tells of the cycles that each collection finds from ``start`` to ``stop``.

    ``ask`` makes the question for a collection whose garbage has a tensor in it; ``None`` skips it. ``tell`` gets the
    cycles once the garbage is gone; ``failed`` what went wrong with an explanation, which else is raised. They all
    run inside the collection: no other one starts meanwhile.
    """

    def __init__(
        self,
        tell: Callable[[list[Cycle]], None],
        ask: Callable[[], Question | None] | None = None,
        kind: type | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self._tell = tell
        self._failed = failed
        self._ask = ask or (lambda: _question(kind))
        self._kind = kind
        self._watch = GarbageWatch(self._look)

    def start(self) -> None:
        """Watch from here on."""
        self._watch.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._watch.stop()

    def _look(self, garbage: Sequence[object]) -> Callable[[], None] | None:
        if self._watch.partial:
            garbage = [*garbage, *held_by(garbage)]
        if not has_targets(garbage, self._kind):
            return None
        try:
            from cudamem_testing.cycles.explain import explain

            question = self._ask()
            if question is None:
                return None
            draft: Draft = explain(garbage, question)
        except Exception as error:
            garbage, without_frames = (), error.with_traceback(None)  # they hold the garbage
            if self._failed is None:
                raise without_frames from None
            self._failed(without_frames)
            return None

        def gone() -> None:
            found = draft.settled(freed=not self._watch.users)
            if found:
                self._tell(found)

        return gone


def has_targets(garbage: Sequence[object], kind: type | None = None) -> bool:
    """Whether garbage has a tensor in it (or an instance of ``kind``). Fast: each class is judged once."""
    wanted = TensorBase if kind is None else kind
    classes = dict(zip(map(id, map(type, garbage)), map(type, garbage), strict=True))
    return any(static.derives(cls, wanted) for cls in classes.values())


def _question(kind: type | None) -> Question:
    from cudamem_testing.cycles.allocations import recorded_allocations
    from cudamem_testing.cycles.explain import Question
    from cudamem_testing.model.stacks import Locator

    return Question(Locator(os.getcwd()), allocated=recorded_allocations(), kind=kind)
