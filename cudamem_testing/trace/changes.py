"""Changes of memory over time, in order. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from cudamem_testing.trace.categories import Category
from cudamem_testing.trace.records import Storage

BEFORE = -1
"""The time of what existed when the recording began."""


class Action(Enum):
    """What happens to memory."""

    PREEXISTING = 1
    CREATE = 2
    INCREMENT_VERSION = 3
    DESTROY = 4

    def __str__(self) -> str:
        return self.name


class MemoryChange(NamedTuple):
    """One thing that happens to one piece of memory."""

    time: int
    """Nanoseconds on the profiler's clock; -1 for what existed before."""
    action: Action
    device: str
    nbytes: int
    storage: Storage | None
    """``None`` for memory in which no operator ever saw a tensor."""
    version: int
    """The version of the contents: the first, the one that changes, or the last."""
    category: Category | None
    """The category of the contents afterwards; the last one of what is destroyed."""
    event: int
    """Index of the event in the trace: the allocation, or the operator that writes; -1 for none."""
    pointer: int
