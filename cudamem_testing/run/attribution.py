"""Attributes the live blocks of a device to owners: a test, a wider fixture, a library.

Each device has one of three strategies. On the CPU every block records the number of its owner (:mod:`.by_owner`). On
a card blocks are attributed by the window in which they were allocated, and entered by address when they are found
(:mod:`.by_address`). Where its allocator lists none, the storages of tensors are its blocks (:mod:`.by_storage`). No
other module asks which one it is. Devices whose blocks cannot be distinguished have none.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from cudamem_testing.model.records import LedgerEntry
from cudamem_testing.recorders.base import NOTHING, Owned
from cudamem_testing.run.by_owner import ByOwner

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.run.by_address import ByAddress
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.run.running import Fixture, LeakSubject
    from cudamem_testing.windows.owners import Owner, Owners
    from cudamem_testing.windows.tracker import Tracker

Left = Mapping["Device", Owned]


class Attribution(Protocol):
    """Attributes the blocks of one device."""

    recorder: Recorder

    def left(self, subject: LeakSubject, *, fresh: bool) -> Owned:
        """What a subject retains, now or at the tracker's last read."""

    def blocks(self, subject: LeakSubject) -> list[Block]:
        """The live blocks of a subject."""

    def live(self, subject: LeakSubject) -> list[Block]:
        """Live blocks that include those of a subject: only these, or all of the device."""

    def others(self, subject: LeakSubject) -> Owned | None:
        """What is live now of everything but the subject; ``None`` if unknown."""

    def begin(self) -> None:
        """The first test begins. What is live then belongs to no owner."""

    def made(self, fixture: Fixture) -> None:
        """A wider fixture was set up: note what it made."""

    def enter(self, label: str, blocks: Iterable[Block]) -> None:
        """Enter the owner of some blocks."""

    def take_workspaces_again(self, subject: LeakSubject) -> None:
        """Libraries released their workspaces: have them allocate what they need, outside any window."""

    def border(self, place: str) -> list[Finding]:
        """At the end of a module: new blocks that no finding names, because the counts of every test balanced."""

    def totals(self) -> Mapping[str, Owned]:
        """What is live by owner."""

    def live_of(self, owner: Owner) -> list[Block]:
        """The live blocks of an owner whose windows have ended."""

    def set_aside(self, subject: LeakSubject) -> None:
        """Set aside what a subject left, which is too small to be judged alone."""

    @property
    def bytes_set_aside(self) -> int:
        """Bytes that were set aside and are still live."""

    def blocks_set_aside(self) -> list[Block]:
        """The blocks that were set aside, by owner."""


class Attributions:
    """Those of all measured devices."""

    def __init__(self, tracker: Tracker, owners: Owners, evidence: Evidence) -> None:
        self._tracker = tracker
        self._owners = owners
        self._evidence = evidence
        self._ways: dict[Recorder, Attribution] = {}
        self._recorders: Sequence[Recorder] = ()
        self._all: list[Attribution] = []
        self.begun: Sequence[Recorder] = ()
        """The recorders whose first test has begun."""

    @property
    def all(self) -> Sequence[Attribution]:
        """One for each device whose blocks can be distinguished."""
        recorders = self._tracker.recorders
        if recorders is not self._recorders:
            self._recorders = recorders
            self._all = [self._way(one) for one in recorders if one.tells_blocks or one.tells_storages]
        return self._all

    def of(self, device: Device) -> Attribution:
        """That of one device."""
        return next(one for one in self.all if one.recorder.device == device)

    def recorded(self, subject: LeakSubject) -> dict[str, ByAddress]:
        """The devices, by name, whose record will have all events of a test when it ends; their blocks record no
        owner.
        """
        if subject.phases is None:
            return {}
        return {str(one.recorder.device): cast("ByAddress", one) for one in self.all if one.recorder.keeps_events}

    def left(self, subject: LeakSubject, *, fresh: bool = True) -> Left:
        """What a subject retains on each device where it is not nothing, now or at the tracker's last read."""
        found = {}
        for way in self._all if self._recorders is self._tracker.recorders else self.all:
            left = way.left(subject, fresh=fresh)
            if left is not NOTHING and (left.blocks or left.bytes) and subject.judged(way.recorder.device):
                found[way.recorder.device] = left
        return found

    def begin(self) -> None:
        """The first test on some devices begins."""
        self.begun = self._tracker.recorders
        for way in self.all:
            way.begin()

    def border(self, place: str) -> list[Finding]:
        """At the end of a module: new blocks that no finding names."""
        return [finding for way in self.all for finding in way.border(place)]

    def ledger(self) -> list[LedgerEntry]:
        """What is live now by the owner who left it, largest first."""
        entries = [
            LedgerEntry(str(way.recorder.device), owner, owned.bytes, owned.blocks)
            for way in self.all
            for owner, owned in way.totals().items()
        ]
        return sorted(entries, key=lambda entry: -entry.bytes)

    def _way(self, recorder: Recorder) -> Attribution:
        found = self._ways.get(recorder)
        if found is None:
            found = self._ways[recorder] = self._new(recorder)
        return found

    def _new(self, recorder: Recorder) -> Attribution:
        if recorder.tells_owners:
            return ByOwner(recorder, self._tracker, self._owners, self._evidence)
        if recorder.tells_blocks:
            from cudamem_testing.run.by_address import ByAddress

            return ByAddress(recorder, self._tracker, self._evidence)
        from cudamem_testing.run.by_storage import ByStorage  # few runs need it

        return ByStorage(recorder, self._tracker)
