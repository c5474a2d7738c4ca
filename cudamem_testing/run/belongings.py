"""Belongings: what is live of a test, or of a wider fixture that is over.

Where blocks carry owners (the CPU) the owner's number tells. On a card a test has what was allocated since its setup
began, outside wider fixtures; a fixture what its setup made (by address, since a history lasts one test) and what was
allocated in its windows. There a fixture that came out even by the counters is not looked at: what hides behind that
is found at the end of the module. A history whose first events were dropped lacks what they allocated: the test has the
live blocks that are not in the books, where they add up to what the counters say. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.base import Owned, Recorder
from cudamem_testing.run.evidence import Evidence
from cudamem_testing.run.running import Fixture, Subject
from cudamem_testing.snapshots.evidence import moment_of
from cudamem_testing.windows.owners import Owners
from cudamem_testing.windows.tracker import Tracker

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.windows import Window
    from cudamem_testing.run.books import Books
    from cudamem_testing.snapshots.replay import Replay

Left = Mapping[Device, Owned]


class Belongings:
    """Tells what is whose."""

    def __init__(self, tracker: Tracker, owners: Owners, evidence: Evidence, books: Books) -> None:
        self._tracker = tracker
        self._owners = owners
        self._evidence = evidence
        self._books = books

    def left(self, subject: Subject, *, fresh: bool = True) -> Left:
        """What is retained on each device where it is not nothing, now or at the tracker's last read."""
        left = self._owners.owned(subject.owner)
        cards = []
        for one in self._tracker.recorders:
            if one.tells_blocks and not one.tells_owners:
                cards.append(one)  # noqa: PERF401 - a comprehension is a call, and this is done for every test
        if cards and subject.fixture is not None:
            for recorder in cards:
                if not subject.fixture.is_even(recorder.device):
                    left.update(_summed(self.blocks(recorder, subject)))
                else:
                    self._evidence.ledger.forget(recorder.device, subject.fixture.made.pop(recorder.device, ()))
        elif cards and subject.whole is not None:
            for recorder, retained, blocks in self._tracker.gained(subject.whole, fresh=fresh):
                if recorder in cards and (retained or blocks):
                    left[recorder.device] = Owned(retained or 0, blocks or 0)
        return {device: owned for device, owned in left.items() if subject.judged(device)} if left else left

    def blocks(self, recorder: Recorder, subject: Subject) -> list[Block]:
        """The live blocks."""
        device = recorder.device
        number = subject.owner.numbers.get(device)
        if number is not None:
            return self._evidence.live_of(device, number, subject.owner.label)
        replayed = self._evidence.replay(device)
        if replayed is None:
            return []
        if subject.fixture is not None:
            return self._of_fixture(recorder, replayed, subject.fixture, subject.fixtures)
        if not len(replayed.recording.events):
            known = self._books.known(device)
            return [block for block in replayed.live_at() if block.address not in known]
        if subject.whole is None:
            return []
        now = next(window for window in self._tracker.peek(subject.whole) if window.device == device)
        start = moment_of(replayed.recording, now.opened, now.closed)
        foreign = self._spans(recorder, replayed, subject.fixtures)
        live = replayed.live_at(since=start)
        own = [block for block in live.fresh() if not _among(block, foreign)]
        if start or not replayed.recording.truncated:
            return own
        known = self._books.known(device)
        every = [*(block for block in live if block.preexisting and block.address not in known), *own]
        even = (sum(block.size for block in every), len(every)) == (now.retained, now.blocks)
        return every if even else own

    def made(self, fixture: Fixture) -> None:
        """A wider fixture was set up: note what it made, and enter it, on devices whose blocks carry no owner."""
        for recorder in self._tracker.recorders:
            device = recorder.device
            if recorder.tells_blocks and not recorder.tells_owners and not fixture.is_even(device):
                blocks = self.blocks(recorder, fixture.subject)
                fixture.made[device] = {(block.address, block.size) for block in blocks if block.address is not None}
                self._evidence.ledger.enter(device, fixture.owner.label, blocks)

    def _of_fixture(
        self, recorder: Recorder, replayed: Replay, fixture: Fixture, foreign: Iterable[Window]
    ) -> list[Block]:
        made = fixture.made.get(recorder.device, set())
        own = self._spans(recorder, replayed, fixture.windows)
        others = self._spans(recorder, replayed, (window for window in foreign if window not in fixture.windows))
        nested = [span for span in others if any(_inside(span, outer) for outer in own)]
        return [
            block
            for block in replayed.live_at()
            if ((block.address, block.size) in made if block.preexisting else _among(block, own))
            and not _among(block, nested)
        ]

    def _spans(self, recorder: Recorder, replayed: Replay, windows: Iterable[Window]) -> list[range]:
        """The orders of what was allocated in some windows of the device."""
        windows = [window for window in windows if window.device == recorder.device]
        if not windows:
            return []
        now, recording = self._tracker.read(recorder), replayed.recording
        return [
            range(
                recording.first + moment_of(recording, window.opened, now),
                recording.first + moment_of(recording, window.closed, now),
            )
            for window in windows
        ]


def _summed(blocks: list[Block]) -> Left:
    return {blocks[0].device: Owned(sum(block.size for block in blocks), len(blocks))} if blocks else {}


def _among(block: Block, spans: Iterable[range]) -> bool:
    return block.order is not None and any(block.order in span for span in spans)


def _inside(span: range, outer: range) -> bool:
    return outer.start <= span.start and span.stop <= outer.stop and span != outer
