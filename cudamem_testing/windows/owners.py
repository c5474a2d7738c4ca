"""Assigns allocated blocks to owners: to a test or a wider fixture.

If a recorder's blocks record an owner (the CPU), what a test retains is known exactly in constant time, also if
others allocate and free meanwhile. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from cudamem_testing.model.devices import Device
from cudamem_testing.windows.tracker import Tracker


class Owner:
    """An owner of blocks: a label, its own name in it, and a number on each device whose blocks record owners."""

    __slots__ = ("label", "name", "numbers")

    def __init__(self, label: str, name: str = "") -> None:
        self.label = label
        self.name = name
        self.numbers: dict[Device, int] = {}


class Owners:
    """All owners so far."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self.names: dict[int, str] = {}
        """Labels by number; nothing else of a test is kept."""

    def enter(self, owner: Owner) -> Callable[[], object]:
        """Make ``owner`` own everything allocated from now on; returns a function that restores the earlier owner."""
        before: list[Callable[[], int]] = []
        for recorder in self._tracker.recorders:
            if not recorder.tells_owners:
                continue
            number = owner.numbers.get(recorder.device)
            if number is None:
                number, former = recorder.own_new()
                owner.numbers[recorder.device] = number
                self.names[number] = owner.label
            else:
                former = recorder.own(number)
            before.append(partial(recorder.own, former))
        return before[0] if len(before) == 1 else partial(_each, before)


def _each(functions: Iterable[Callable[[], object]]) -> None:
    for function in functions:
        function()
