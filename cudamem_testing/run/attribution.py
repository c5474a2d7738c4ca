"""Attribution: whose the live blocks of a device are: a test's, a wider fixture's, a library's.

There are two ways to know, and each device has one of them. On the CPU every block carries the number of its owner
(:mod:`.by_owner`). On a card nothing does: what was allocated in whose window tells, and blocks are entered by address
when they are found (:mod:`.by_address`). Nothing else asks which way it is. Devices whose blocks cannot be told apart
have none. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from cudamem_testing.model.records import LedgerEntry
from cudamem_testing.recorders.base import Owned
from cudamem_testing.run.by_address import ByAddress
from cudamem_testing.run.by_owner import ByOwner

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.run.running import Fixture, Subject
    from cudamem_testing.windows.owners import Owner, Owners
    from cudamem_testing.windows.tracker import Tracker

Left = Mapping["Device", Owned]


class Attribution(Protocol):
    """Tells what is whose on one device."""

    recorder: Recorder

    def left(self, subject: Subject, *, fresh: bool) -> Owned:
        """What a subject retains, now or at the tracker's last read."""

    def blocks(self, subject: Subject) -> list[Block]:
        """The live blocks of a subject."""

    def live(self, subject: Subject) -> list[Block]:
        """The live blocks among which those of a subject are: no others, or all of the device."""

    def others(self, subject: Subject) -> Owned | None:
        """What is live now of all but the subject; ``None`` where that is not known."""

    def begin(self) -> None:
        """A test begins; what is live when the first one does is nobody's."""

    def made(self, fixture: Fixture) -> None:
        """A wider fixture was set up: note what it made."""

    def enter(self, label: str, blocks: Iterable[Block]) -> None:
        """Note whose some blocks are."""

    def take_workspaces_again(self, subject: Subject) -> None:
        """Libraries gave back their workspaces: have them take what they need, in nobody's window."""

    def border(self, place: str) -> list[Finding]:
        """At the end of a module: blocks that nobody was blamed for, because every test's counts came out even."""

    def totals(self) -> Mapping[str, Owned]:
        """What is live by owner."""

    def live_of(self, owner: Owner) -> list[Block]:
        """The live blocks of somebody whose windows are closed."""

    def set_aside(self, subject: Subject) -> None:
        """What a subject left is too small to be judged for itself."""

    @property
    def bytes_set_aside(self) -> int:
        """Bytes still live of all that was set aside."""

    def blocks_set_aside(self) -> list[Block]:
        """The blocks of it, by owner."""


class Attributions:
    """Those of all measured devices."""

    def __init__(self, tracker: Tracker, owners: Owners, evidence: Evidence) -> None:
        self._tracker = tracker
        self._owners = owners
        self._evidence = evidence
        self._ways: dict[Recorder, Attribution] = {}

    @property
    def all(self) -> list[Attribution]:
        """One for each device whose blocks can be told apart."""
        return [self._way(one) for one in self._tracker.recorders if one.tells_blocks]

    def of(self, device: Device) -> Attribution:
        """That of one device."""
        return next(one for one in self.all if one.recorder.device == device)

    def left(self, subject: Subject, *, fresh: bool = True) -> Left:
        """What a subject retains on each device where it is not nothing, now or at the tracker's last read."""
        found = {}
        for recorder in self._tracker.recorders:
            if recorder.tells_blocks:
                left = self._way(recorder).left(subject, fresh=fresh)
                if (left.blocks or left.bytes) and subject.judged(recorder.device):
                    found[recorder.device] = left
        return found

    def begin(self) -> None:
        """A test begins."""
        for recorder in self._tracker.recorders:  # no list: every test begins
            if recorder.tells_blocks:
                self._way(recorder).begin()

    def border(self, place: str) -> list[Finding]:
        """At the end of a module: blocks that nobody was blamed for."""
        return [finding for way in self.all for finding in way.border(place)]

    def ledger(self) -> list[LedgerEntry]:
        """Who left what is live now, largest first."""
        entries = [
            LedgerEntry(str(way.recorder.device), owner, owned.bytes, owned.blocks)
            for way in self.all
            for owner, owned in way.totals().items()
        ]
        return sorted(entries, key=lambda entry: -entry.bytes)

    def _way(self, recorder: Recorder) -> Attribution:
        found = self._ways.get(recorder)
        if found is None:
            found = self._ways[recorder] = (
                ByOwner(recorder, self._tracker, self._owners, self._evidence)
                if recorder.tells_owners
                else ByAddress(recorder, self._tracker, self._evidence)
            )
        return found
