"""What did not recover after an allocation had failed, as facts. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from dataclasses import dataclass

from cudamem_testing.model.retained import Allocation, RetainedBlock


@dataclass(frozen=True, slots=True)
class HalfChanged:
    """State of which a failed allocation left only a part changed.

    ``changed`` and ``unchanged`` are the first names of ``number`` and ``others``; ``missing`` is whether those that
    did not change were removed instead.
    """

    changed: tuple[str, ...]
    number: int
    unchanged: tuple[str, ...]
    others: int
    missing: bool = False


@dataclass(frozen=True, slots=True)
class WrittenInPart:
    """State that a complete run writes in place ``of`` times, and the failed one wrote only ``done`` times.

    ``name`` is the first of ``number`` such.
    """

    name: str
    done: int
    of: int
    number: int


@dataclass(frozen=True, slots=True)
class NotRestored:
    """A setting, a hook or a lock that a failed allocation left other than before."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class NotRecovered:
    """What was not as before after an allocation of a step had failed.

    ``where`` and ``operator`` made the request of ``size`` bytes: the ``number``-th ``of`` all in a run, and the first
    of ``times`` at this place with the same faults. ``left`` are the largest of ``count`` blocks left behind, of
    ``left_bytes``; ``cycles`` is how many bytes only the garbage collector freed, ``cycle_lines`` allocated them.
    ``raised`` replaced the out-of-memory error, ``check`` is the error of the caller's check, ``again`` that of the
    next run.
    """

    where: Allocation
    size: int
    number: int
    of: int
    operator: str | None = None
    times: int = 1
    left: tuple[RetainedBlock, ...] = ()
    count: int = 0
    left_bytes: int = 0
    cycles: int = 0
    cycle_lines: tuple[str, ...] = ()
    half: tuple[HalfChanged, ...] = ()
    written: WrittenInPart | None = None
    settings: tuple[NotRestored, ...] = ()
    raised: str | None = None
    check: str | None = None
    again: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything recovered."""
        others = self.written, self.raised, self.check, self.again
        return not (self.left or self.cycles or self.half or self.settings or any(one is not None for one in others))


@dataclass(frozen=True, slots=True)
class NotTried:
    """A sweep that ended early: ``tried`` of ``of`` allocations failed once, for a ``reason``."""

    tried: int
    of: int
    reason: str
