"""Blocks that are still live, as facts: where they were allocated and what holds them. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from dataclasses import dataclass

from cudamem_testing.model.edges import View
from cudamem_testing.model.references import Path, Reach
from cudamem_testing.model.stacks import Frame, Stack


@dataclass(frozen=True, slots=True)
class Allocation:
    """Where a block was allocated: the line to look at, the library call behind it, the call in the test.

    Without a Python stack ``line`` is ``None``; ``after`` is then the project's line that allocated last before it.
    """

    line: Frame | None = None
    library: str = ""
    caller: Frame | None = None
    after: Frame | None = None

    @classmethod
    def of(cls, stack: Stack, after: Frame | None = None) -> Allocation:
        """The allocation of a stack."""
        caller = None if stack.caller == stack.project_frame else stack.caller
        return cls(stack.where, stack.library, caller, None if stack.frames else after)


@dataclass(frozen=True, slots=True)
class RetainedBlock:
    """A block that is still live: its tensor, where it was allocated, and what holds it.

    ``view`` is set if only views of a part of it are held. ``requested`` are the requested bytes.
    """

    bytes: int
    name: str | None
    allocated: Allocation
    reach: Reach
    path: Path | None = None
    view: View | None = None
    requested: int | None = None
