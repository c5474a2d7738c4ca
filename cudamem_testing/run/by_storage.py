"""Attribution where the allocator counts bytes and lists no blocks, as ``cudaMallocAsync`` does.

Only a test whose bytes grew is examined. Then the storages of all tensors are its blocks that were not there before;
what the counter has beyond them is one block without an address, which no object explains. What is not seen: tensors
that a test keeps in place of others that it freed, and stacks. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cudamem_testing.model.blocks import Block
from cudamem_testing.objects.storages import storages_on
from cudamem_testing.recorders.base import NOTHING, Owned
from cudamem_testing.run.without_owners import WithoutOwners
from cudamem_testing.torch_api import capturing

if TYPE_CHECKING:
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.objects.tensors import Storage
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.run.running import Fixture, LeakSubject
    from cudamem_testing.windows.phases import Phases
    from cudamem_testing.windows.tracker import Tracker

NO_OWNER = ""


class ByStorage(WithoutOwners):
    """Attributes storages by when they were first seen; see :class:`.attribution.Attribution`."""

    def __init__(self, recorder: Recorder, tracker: Tracker) -> None:
        super().__init__(recorder, tracker)
        self._labels: dict[Storage, str] | None = None  # of those that were there before, or have an owner
        self._live: dict[int, Storage] = {}
        self._graphs = False
        self._asked: Phases | None = None  # of the test for which libraries were asked for their workspaces
        self._workspaces = 0  # bytes that libraries allocated again, for no test

    def left(self, subject: LeakSubject, *, fresh: bool) -> Owned:
        """The growth of the counter; for a fixture whose counters do not balance, its storages."""
        if subject.fixture is not None:
            return _total([] if subject.fixture.is_even(self.recorder.device) else self.blocks(subject))
        return Owned(self._growth(subject, fresh=fresh), 0)

    def _growth(self, subject: LeakSubject, *, fresh: bool) -> int:
        if subject.phases is None:
            return 0
        gained = subject.phases.gained(fresh=fresh)
        return next((retained or 0 for recorder, retained, _ in gained if recorder is self.recorder), 0)

    def blocks(self, subject: LeakSubject) -> list[Block]:
        """The new storages, and as one block the rest of what the counter grew by."""
        if subject.fixture is not None:
            self._look()
            made = subject.fixture.made.get(self.recorder.device, set())
            return [self._block(one) for one in self._live.values() if (one.address, one.nbytes) in made]
        new = self._new()
        total = sum(block.size for block in new)
        rest = self._growth(subject, fresh=True) - total
        if rest > 0 and self._asked is not subject.phases and not self._graphs and not capturing():
            self._exclude_workspaces(subject)
            rest = self._growth(subject, fresh=True) - total
        return new + ([Block(size=rest, requested=rest, device=self.recorder.device)] if rest > 0 else [])

    def _exclude_workspaces(self, subject: LeakSubject) -> None:
        """Have libraries release their workspaces: those of earlier tests do not make the growth smaller."""
        if subject.phases is None:
            return
        self._asked = subject.phases
        before = self._growth(subject, fresh=True)
        self.recorder.release()
        earlier = min(self._workspaces, before - self._growth(subject, fresh=True))
        if earlier:
            self._tracker.exclude_freed(
                subject.phases.whole, self.recorder.device, earlier, 0, "workspaces of libraries"
            )
        self.take_workspaces_again(subject)

    def begin(self) -> None:
        """What is live at the start of the first test belongs to no owner."""
        if self._labels is None:
            self._labels = {}
            self.enter(NO_OWNER, self._new())

    def made(self, fixture: Fixture) -> None:
        """Note what its setup allocated, and enter it."""
        if not fixture.is_even(self.recorder.device):
            blocks = self._new()
            fixture.made[self.recorder.device] = {(block.address or 0, block.size) for block in blocks}
            self.enter(fixture.owner.label, blocks)

    def enter(self, label: str, blocks: Iterable[Block]) -> None:
        """Note it beside their storages."""
        labels = self._labels = self._labels or {}
        for block in blocks:
            storage = self._live.get(block.address or 0)
            if storage is not None:
                labels[storage] = label

    def take_workspaces_again(self, subject: LeakSubject) -> None:
        """Have them do so now, so that the next test need not."""
        windows = self._retaken(subject)
        self._workspaces = sum(one.retained or 0 for one in windows if one.device == self.recorder.device)

    def border(self, place: str) -> list[Finding]:
        """What is new has no owner from now on."""
        self.enter(NO_OWNER, self._new())
        return []

    def totals(self) -> dict[str, Owned]:
        """What is live by owner, as far as is known."""
        named: dict[str, list[Block]] = {}
        for block in self._all():
            if block.owner:
                named.setdefault(block.owner, []).append(block)
        return {label: _total(blocks) for label, blocks in named.items()}

    def _look(self) -> None:
        self._live, self._graphs = storages_on(str(self.recorder.device))
        labels = self._labels or {}
        self._labels = {storage: labels[storage] for storage in self._live.values() if storage in labels}

    def _new(self) -> list[Block]:
        self._look()
        labels = self._labels or {}
        return [self._block(one) for one in self._live.values() if one not in labels]

    def _all(self) -> list[Block]:
        self._look()
        return [self._block(one) for one in self._live.values()]

    def _block(self, storage: Storage) -> Block:
        return Block(
            size=storage.nbytes,
            requested=storage.nbytes,
            device=self.recorder.device,
            address=storage.address,
            owner=(self._labels or {}).get(storage) or None,
        )


def _total(blocks: list[Block]) -> Owned:
    return Owned(sum(block.size for block in blocks), len(blocks)) if blocks else NOTHING
