"""What attributions share where blocks carry no owner: it is entered beside them. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.windows import Window
    from cudamem_testing.recorders.base import Owned, Recorder
    from cudamem_testing.run.running import LeakSubject
    from cudamem_testing.windows.owners import Owner
    from cudamem_testing.windows.tracker import Tracker


class WithoutOwners(ABC):
    """A base of attributions; see :class:`.attribution.Attribution` for what their methods do."""

    def __init__(self, recorder: Recorder, tracker: Tracker) -> None:
        self.recorder = recorder
        self._tracker = tracker
        self._aside: set[str] = set()

    @abstractmethod
    def blocks(self, subject: LeakSubject) -> list[Block]:
        """The live blocks of a subject."""

    @abstractmethod
    def _all(self) -> list[Block]:
        """All blocks of the device, with the owners that were entered."""

    @abstractmethod
    def enter(self, label: str, blocks: Iterable[Block]) -> None:
        """Enter the owner of some blocks."""

    def live(self, subject: LeakSubject) -> list[Block]:
        """All blocks of the device."""
        return self._all()

    def live_of(self, owner: Owner) -> list[Block]:
        """The blocks that no other owner has."""
        return [block for block in self._all() if block.owner in (owner.label, None)]

    def _retaken(self, subject: LeakSubject) -> Sequence[Window]:
        """Have libraries allocate their workspaces now, so that the next test need not; in which windows they did."""
        span = self._tracker.open("workspaces of libraries", exclusive=True)
        self.recorder.retake()
        windows = self._tracker.close(span)
        if subject.fixture is None and isinstance(subject.fixtures, list):
            subject.fixtures += windows
        return windows

    def others(self, subject: LeakSubject) -> Owned | None:
        """Unknown without reading all blocks."""
        return None

    def set_aside(self, subject: LeakSubject) -> None:
        """Enter its blocks: at the next test they are no longer known as its own."""
        self.enter(subject.owner.label, self.blocks(subject))
        self._aside.add(subject.owner.label)

    @property
    def bytes_set_aside(self) -> int:
        """What is live of those owners."""
        return sum(block.size for block in self.blocks_set_aside()) if self._aside else 0

    def blocks_set_aside(self) -> list[Block]:
        """The blocks of such owners."""
        return [block for block in self._all() if block.owner in self._aside]
