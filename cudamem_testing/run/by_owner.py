"""Attributes blocks that record the number of their owner: exact to the byte, also if others allocate and free.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cudamem_testing.recorders.base import NOTHING, Owned

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.run.running import Fixture, LeakSubject
    from cudamem_testing.windows.owners import Owner, Owners
    from cudamem_testing.windows.tracker import Tracker


class ByOwner:
    """Attributes blocks by the numbers of owners; see :class:`.attribution.Attribution`."""

    def __init__(self, recorder: Recorder, tracker: Tracker, owners: Owners, evidence: Evidence) -> None:
        self.recorder = recorder
        self._tracker = tracker
        self._owners = owners
        self._evidence = evidence
        self._aside: dict[int, str] = {}

    def left(self, subject: LeakSubject, *, fresh: bool) -> Owned:
        """What the recorder counts for the owner."""
        number = subject.owner.numbers.get(self.recorder.device)
        return NOTHING if number is None or not self.recorder.owns(number) else self.recorder.owned(number)

    def blocks(self, subject: LeakSubject) -> list[Block]:
        """The owner's blocks."""
        return self.live_of(subject.owner)

    def live(self, subject: LeakSubject) -> list[Block]:
        """The owner's blocks; no others are needed."""
        return self.live_of(subject.owner)

    def live_of(self, owner: Owner) -> list[Block]:
        """The blocks with the owner's number."""
        number = owner.numbers.get(self.recorder.device)
        return [] if number is None else self._evidence.live_of(self.recorder.device, number, owner.label)

    def others(self, subject: LeakSubject) -> Owned | None:
        """Everything that is live except the owner's; ``None`` for an owner older than the recorder."""
        number = subject.owner.numbers.get(self.recorder.device)
        if number is None:
            return None
        now = self._tracker.read(self.recorder)
        return Owned(now.allocated or 0, now.blocks or 0).without(self.recorder.owned(number))

    def begin(self) -> None:
        """Does nothing: new blocks record the current owner."""

    def made(self, fixture: Fixture) -> None:
        """Nothing, for the same reason."""

    def enter(self, label: str, blocks: Iterable[Block]) -> None:
        """Nothing, for the same reason."""

    def take_workspaces_again(self, subject: LeakSubject) -> None:
        """Does nothing: whoever allocates them later is their owner."""

    def border(self, place: str) -> list[Finding]:
        """Finds nothing: every block has an owner."""
        return []

    def totals(self) -> dict[str, Owned]:
        """Live blocks by owner; owners of nothing are left out."""
        found: dict[str, Owned] = {}
        for number, label in self._owners.names.items():
            if self.recorder.owns(number) and (owned := self.recorder.owned(number)).blocks:
                before = found.get(label, NOTHING)
                found[label] = Owned(before.bytes + owned.bytes, before.blocks + owned.blocks)
        return found

    def set_aside(self, subject: LeakSubject) -> None:
        """Its number is enough to find them again."""
        self._aside[subject.owner.numbers[self.recorder.device]] = subject.owner.label

    @property
    def bytes_set_aside(self) -> int:
        """What the recorder counts for those owners."""
        return sum(self.recorder.owned(number).bytes for number in self._aside)

    def blocks_set_aside(self) -> list[Block]:
        """Those of all such owners, by one reading."""
        replayed = self._evidence.replay(self.recorder.device, owners=self._aside)
        return [] if replayed is None else [block for block in replayed.live_at() if block.owner is not None]
