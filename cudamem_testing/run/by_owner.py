"""Attribution where blocks carry the number of their owner: known to the byte, whatever else lives or dies meanwhile.

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
    from cudamem_testing.run.running import Fixture, Subject
    from cudamem_testing.windows.owners import Owner, Owners
    from cudamem_testing.windows.tracker import Tracker


class ByOwner:
    """Tells what is whose by the numbers of owners; see :class:`.attribution.Attribution`."""

    def __init__(self, recorder: Recorder, tracker: Tracker, owners: Owners, evidence: Evidence) -> None:
        self.recorder = recorder
        self._tracker = tracker
        self._owners = owners
        self._evidence = evidence
        self._aside: dict[int, str] = {}

    def left(self, subject: Subject, *, fresh: bool) -> Owned:
        """What the recorder counts for the owner."""
        number = subject.owner.numbers.get(self.recorder.device)
        return NOTHING if number is None else self.recorder.owned(number)

    def blocks(self, subject: Subject) -> list[Block]:
        """Those of the owner."""
        return self.live_of(subject.owner)

    def live(self, subject: Subject) -> list[Block]:
        """No others are needed."""
        return self.live_of(subject.owner)

    def live_of(self, owner: Owner) -> list[Block]:
        """Those with the owner's number."""
        number = owner.numbers.get(self.recorder.device)
        return [] if number is None else self._evidence.live_of(self.recorder.device, number, owner.label)

    def others(self, subject: Subject) -> Owned | None:
        """All that is live but for the owner's; ``None`` for an owner from before the recorder."""
        number = subject.owner.numbers.get(self.recorder.device)
        if number is None:
            return None
        now = self._tracker.read(self.recorder)
        return Owned(now.allocated or 0, now.blocks or 0).without(self.recorder.owned(number))

    def begin(self) -> None:
        """Nothing is to be noted: new blocks carry the owner of the moment."""

    def made(self, fixture: Fixture) -> None:
        """Nothing, for the same reason."""

    def enter(self, label: str, blocks: Iterable[Block]) -> None:
        """Nothing, for the same reason."""

    def take_workspaces_again(self, subject: Subject) -> None:
        """Nothing: who takes them later is known then."""

    def border(self, place: str) -> list[Finding]:
        """Nothing: every block has an owner."""
        return []

    def totals(self) -> dict[str, Owned]:
        """Live blocks by owner; owners of nothing are left out."""
        found: dict[str, Owned] = {}
        for number, label in self._owners.names.items():
            if (owned := self.recorder.owned(number)).blocks:
                before = found.get(label, NOTHING)
                found[label] = Owned(before.bytes + owned.bytes, before.blocks + owned.blocks)
        return found

    def set_aside(self, subject: Subject) -> None:
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
