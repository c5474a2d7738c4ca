"""What every recorder can do. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import Protocol

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device


class Recorder(Protocol):
    """The source of truth for one device.

    ``incomplete`` is the reason why its windows may miss something, ``None`` when it sees everything.
    """

    device: Device

    @property
    def incomplete(self) -> str | None: ...

    def wake(self, *, limited: bool) -> None:
        """A test begins; a recorder that is costly stays asleep unless a limit or a window was written down for it."""
        ...

    def boundary(self) -> Counters | None:
        """Read the counters, with the peaks since the last boundary, and start new peaks; ``None`` while asleep."""
        ...

    def set_limit(self, size: int | None) -> None:
        """Let an allocation that would take more than ``size`` bytes above now fail with an out-of-memory error.

        ``None`` puts back what was in force before the limit.
        """
        ...

    def close(self) -> None:
        """Leave the process as it was found."""
        ...
