"""Memory that a process uses on a card outside torch's allocator, and the fact that it has grown. Sizes are bytes.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import dataclass

from cudamem_testing.model.devices import Device


@dataclass(frozen=True, slots=True)
class OutsideUse:
    """One reading of a process's memory on a card.

    ``process`` is what this process uses and ``in_use`` what all processes use, ``None`` if unknown.
    ``reserved`` is what torch's allocator holds of it. ``plans`` is how many plans cuFFT keeps.
    """

    device: Device
    reserved: int
    process: int | None = None
    in_use: int | None = None
    plans: int | None = None

    @property
    def bytes(self) -> int | None:
        """Bytes outside the allocator; includes other processes if only the sum of all is known."""
        taken = self.in_use if self.process is None else self.process
        return None if taken is None else taken - self.reserved


@dataclass(frozen=True, slots=True)
class OutsideGrew:
    """More memory of a card outside torch's allocator than before a file's tests."""

    place: str
    now: OutsideUse
