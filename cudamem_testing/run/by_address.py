"""Attribution where blocks carry no owner: by the windows in which they were allocated, and by address.

A test has what was allocated since its setup began, outside wider fixtures; a fixture what its setup made (by address,
since a history lasts one test) and what was allocated in its windows. A fixture whose counters balance is not examined:
what this hides is found at the end of the module, as blocks that are new although the counts of every test balanced. A
history whose first events were dropped lacks what they allocated: then the test has the live blocks without an owner,
if they add up to what the counters say. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from cudamem_testing.recorders.base import NOTHING, Owned
from cudamem_testing.run.without_owners import WithoutOwners
from cudamem_testing.snapshots.evidence import moment_between, moment_of

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block, LiveSet
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.model.windows import Window
    from cudamem_testing.recorders.base import Recorder
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.run.running import Fixture, LeakSubject
    from cudamem_testing.snapshots.replay import Replay
    from cudamem_testing.windows.tracker import Tracker


class ByAddress(WithoutOwners):
    """Attributes blocks by windows and addresses; see :class:`.attribution.Attribution`. The ledger of ``evidence`` has
    the owners by address.
    """

    def __init__(self, recorder: Recorder, tracker: Tracker, evidence: Evidence) -> None:
        super().__init__(recorder, tracker)
        self._evidence = evidence
        self._ledger = evidence.ledger
        self._nobodys: set[int] | None = None  # addresses without an owner at the last border

    def left(self, subject: LeakSubject, *, fresh: bool) -> Owned:
        """The growth of the counters; for a fixture whose counters do not balance, its blocks."""
        if subject.fixture is not None:
            if not subject.fixture.is_even(self.recorder.device):
                blocks = self.blocks(subject)
                return Owned(sum(block.size for block in blocks), len(blocks))
            self._ledger.forget(self.recorder.device, subject.fixture.made.pop(self.recorder.device, ()))
        elif subject.phases is not None:
            for recorder, retained, number in subject.phases.gained(fresh=fresh):
                if recorder is self.recorder:
                    return Owned(retained or 0, number or 0)
        return NOTHING

    def blocks(self, subject: LeakSubject) -> list[Block]:
        """The blocks allocated in the windows of a subject, as far as the history shows them."""
        device = self.recorder.device
        replayed = self._evidence.replay(device)
        if replayed is None:
            return []
        if subject.fixture is not None:
            return self._of_fixture(replayed, subject.fixture, subject.fixtures)
        if not len(replayed.recording.events):
            known = self._known_addresses()
            return [block for block in replayed.live_at() if block.address not in known]
        now = self._window(subject)
        if now is None:
            return []
        start = moment_of(replayed.recording, now.opened, now.closed)
        foreign = self._spans(replayed, subject.fixtures)
        live = replayed.live_at(since=start)
        own = [block for block in live.fresh() if not _among(block, foreign)]
        if start or not replayed.recording.truncated:
            return own
        known = self._known_addresses()
        every = [*(block for block in live if block.preexisting and block.address not in known), *own]
        even = (sum(block.size for block in every), len(every)) == (now.retained, now.blocks)
        return every if even else own

    def _window(self, subject: LeakSubject) -> Window | None:
        """The window of a test up to now."""
        if subject.phases is None:
            return None
        return next(one for one in self._tracker.peek(subject.phases.whole) if one.device == self.recorder.device)

    def at(self, subject: LeakSubject, replayed: Replay, moment: int) -> tuple[LiveSet, set[int]] | None:
        """All that was live at an earlier moment of a test, and the addresses of its own blocks among them; ``None`` if
        the record has lost the start of the test.
        """
        window = self._window(subject)
        start = None if window is None else moment_between(replayed.recording, window.opened, window.closed)
        if start is None:
            return None
        live = replayed.live_at(moment, since=start)
        foreign = self._spans(replayed, subject.fixtures)
        return live, {block.address or 0 for block in live.fresh() if not _among(block, foreign)}

    def _all(self) -> list[Block]:
        replayed = self._evidence.replay(self.recorder.device)
        return [] if replayed is None else [*replayed.live_at()]

    def begin(self) -> None:
        """What is live at the start of the first test belongs to no owner."""
        if self._nobodys is None:
            self._nobodys = self._unentered()

    def made(self, fixture: Fixture) -> None:
        """Note what its setup allocated by address, and enter it."""
        device = self.recorder.device
        if not fixture.is_even(device):
            blocks = self.blocks(fixture.subject)
            fixture.made[device] = {(block.address, block.size) for block in blocks if block.address is not None}
            self._ledger.enter(device, fixture.owner.label, blocks)

    def enter(self, label: str, blocks: Iterable[Block]) -> None:
        """Enter it into the ledger."""
        self._ledger.enter(self.recorder.device, label, blocks)

    def take_workspaces_again(self, subject: LeakSubject) -> None:
        """Have them do so now, so that the next test need not; the blocks are entered as the libraries'."""
        known = {block.address for block in self.live(subject)}
        self._retaken(subject)
        self.enter("library workspaces", (block for block in self.live(subject) if block.address not in known))

    def border(self, place: str) -> list[Finding]:
        """A warning for blocks that are new and have no owner."""
        now = self._unentered()
        new, self._nobodys = now - (self._nobodys or set()), now
        return [self._hidden(place, new)] if new else []

    def totals(self) -> dict[str, Owned]:
        """By the ledger."""
        return self._ledger.totals(self.recorder.device)

    def _of_fixture(self, replayed: Replay, fixture: Fixture, foreign: Iterable[Window]) -> list[Block]:
        made = fixture.made.get(self.recorder.device, set())
        own = self._spans(replayed, fixture.windows)
        others = self._spans(replayed, (window for window in foreign if window not in fixture.windows))
        nested = [span for span in others if any(_inside(span, outer) for outer in own)]
        return [
            block
            for block in replayed.live_at()
            if ((block.address, block.size) in made if block.preexisting else _among(block, own))
            and not _among(block, nested)
        ]

    def _spans(self, replayed: Replay, windows: Iterable[Window]) -> list[range]:
        """The orders of what was allocated in some windows of the device."""
        windows = [window for window in windows if window.device == self.recorder.device]
        if not windows:
            return []
        now, recording = self._tracker.read(self.recorder), replayed.recording
        return [
            range(
                recording.first + moment_of(recording, window.opened, now),
                recording.first + moment_of(recording, window.closed, now),
            )
            for window in windows
        ]

    def _known_addresses(self) -> set[int]:
        """The addresses of blocks that are known: older ones, or with an owner."""
        return (self._nobodys or set()) | self._ledger.entered(self.recorder.device)

    def _unentered(self) -> set[int]:
        known = self._tracker.known(self.recorder)  # at the start or the end of a test
        if known is not None and known.blocks == 0:  # reading an empty record costs as much
            return set()
        replayed = self._evidence.replay(self.recorder.device)
        return set() if replayed is None else self._ledger.unknown(replayed.recording)

    def _hidden(self, place: str, addresses: set[int]) -> Finding:
        from cudamem_testing.verdicts.left_over import left_over  # few files leave any

        device = self.recorder.device
        replayed = self._evidence.replay(device)
        live = None if replayed is None else replayed.live_at()
        blocks = tuple(replace(block, preexisting=False) for block in live or () if block.address in addresses)
        self._ledger.enter(device, f"{place} (which test is not known)", blocks)
        return left_over(place, device, live, blocks)


def _among(block: Block, spans: Iterable[range]) -> bool:
    return block.order is not None and any(block.order in span for span in spans)


def _inside(span: range, outer: range) -> bool:
    return outer.start <= span.start and span.stop <= outer.stop and span != outer
