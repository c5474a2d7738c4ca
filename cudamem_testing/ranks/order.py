"""What a process is asked to measure. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cudamem_testing.model.settings import Settings
from cudamem_testing.run.running import Asked


class Order(NamedTuple):
    """What a process is to measure, for which test, and where it says what it took."""

    folder: str
    number: int
    name: str
    nodeid: str
    root: str
    settings: Settings
    asked: Asked
    known: bytes | None = None

    @property
    def path(self) -> Path:
        """The file of the process."""
        return Path(self.folder) / f"{self.number}.json"
