"""What memory consisted of, or why that is unknown. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cudamem_testing.model.live_tables import LiveTable
from cudamem_testing.model.pools import PoolUse


@dataclass(frozen=True, slots=True)
class Shown:
    """A table of another part of the package, as text: operators, the peak of a profile."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trend:
    """Memory over a window: the highest level, in bytes, of each of some equal stretches of its ``events``."""

    levels: tuple[int, ...]
    events: int

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError("memory over a window needs a level")


class Why(str, Enum):
    """Why there is no evidence."""

    #: No events were recorded.
    NO_EVENTS = "no events"
    #: A library may have allocated a workspace in events that were not recorded.
    WORKSPACES = "workspaces"
    #: Single blocks are unknown on the device.
    NO_BLOCKS = "no blocks"
    #: It could not be read.
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class NoEvidence:
    """What is unknown, and why; ``said`` is the reason of a recorder, or the text of an error."""

    what: str
    why: Why
    said: str = ""


Evidence = LiveTable | PoolUse | Shown | Trend | NoEvidence
