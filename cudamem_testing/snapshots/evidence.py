"""The source of records from which evidence is made, and their moments. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cudamem_testing.model.counters import Counters
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.evidence import NoEvidence
    from cudamem_testing.model.stacks import Locator
    from cudamem_testing.model.windows import Window
    from cudamem_testing.snapshots.record import Recording
    from cudamem_testing.snapshots.replay import Replay


class Explains(Protocol):
    """A profile of memory."""

    def explain(self, window: Window) -> tuple[str, ...]:
        """What a window's peak was for, as lines; none if the profile does not contain it."""
        ...


class Records(Protocol):
    """The source of evidence. ``running`` is the label of the running test, ``None`` outside a test."""

    running: str | None
    trends: bool
    """Whether the memory over a window is shown as a line of bars."""

    @property
    def profiles(self) -> Iterable[Explains]:
        """Profiles that the running test recorded."""
        ...

    @property
    def locator(self) -> Locator:
        """Finds the lines of the project."""
        ...

    def replay(self, device: Device) -> Replay | None:
        """The record of a device up to now; ``None`` if none is kept."""
        ...

    def unknown(self, device: Device, what: str) -> NoEvidence:
        """The evidence if a record has no moments of a device."""
        ...


def first_moment(recording: Recording, window: Window) -> int:
    """The moment at which the window began; the first one kept if older events were dropped."""
    return moment_of(recording, window.opened, window.closed)


def moment_of(recording: Recording, then: Counters | None, now: Counters | None) -> int:
    """The moment at which ``then`` was read, in a recording taken when ``now`` was read; 0 if unknown."""
    return moment_between(recording, then, now) or 0


def moment_between(recording: Recording, then: Counters | None, now: Counters | None) -> int | None:
    """The same; ``None`` if unknown."""
    from cudamem_testing.snapshots import replay

    return replay.moment_between(recording, then, now)


def moment_before(recording: Recording, allocations: int, frees: int) -> int | None:
    """The moment with so many allocations and frees after it; ``None`` if unknown."""
    from cudamem_testing.snapshots import replay

    return replay.moment_before_last(recording, allocations, frees)


def allocations_before(window: Window) -> int | None:
    """How many allocations there were when the window began; ``None`` if unknown."""
    return None if window.opened is None else window.opened.allocations
