"""Owners: whose the blocks are that are allocated now, a test's or a wider fixture's.

Where a recorder's blocks carry an owner (the CPU), what a test retains is known to the byte in constant time, whatever
else lives or dies meanwhile. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cudamem_testing.model.devices import Device
from cudamem_testing.windows.tracker import Tracker


class Owner:
    """Somebody who allocates: a label, and a number on each device whose blocks carry owners."""

    __slots__ = ("label", "numbers")

    def __init__(self, label: str) -> None:
        self.label = label
        self.numbers: dict[Device, int] = {}


class Owners:
    """Everybody who has allocated so far."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self.names: dict[int, str] = {}
        """Labels by number; all that is kept of a test for itself."""

    @contextmanager
    def owning(self, owner: Owner) -> Iterator[None]:
        """What is allocated inside belongs to ``owner``."""
        back = self.enter(owner)
        try:
            yield
        finally:
            back()

    def enter(self, owner: Owner) -> Callable[[], None]:
        """What is allocated from now on belongs to ``owner``; the answer puts the former owner back."""
        before: list[tuple[Callable[[int], int], int]] = []
        for recorder in self._tracker.recorders:
            if not recorder.tells_owners:
                continue
            number = owner.numbers.get(recorder.device)
            if number is None:
                number = recorder.new_owner()
                owner.numbers[recorder.device] = number
                self.names[number] = owner.label
            before.append((recorder.own, recorder.own(number)))

        def back() -> None:
            for own, former in before:
                own(former)

        return back
