"""Sizes of graph pools: what captures and replays add to them, and what sharing saves.

Only a graph itself can use its private pool, so that memory is never counted as free. All numbers come from the
allocator's own snapshot. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cudamem_testing.model.devices import Device
from cudamem_testing.model.limits import Breach, Limit
from cudamem_testing.model.pools import Pool, PoolUse
from cudamem_testing.model.sizes import format_size, parse_size
from cudamem_testing.model.windows import Window
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.snapshots.fragmentation import fragmentation
from cudamem_testing.snapshots.record import Recording


@dataclass(frozen=True, slots=True)
class Pools:
    """The private pools of a device at one moment, largest first. ``main`` is the pool of everything else."""

    device: Device
    main: PoolUse
    private: tuple[PoolUse, ...] = ()

    @property
    def reserved(self) -> int:
        """Bytes in private pools."""
        return sum(pool.reserved for pool in self.private)

    def of(self, pool: Pool) -> PoolUse:
        """One pool; empty if it has no segments."""
        empty = PoolUse(pool, 0, 0, 0, 0, 0, 0, 0, 0)
        return next((one for one in (self.main, *self.private) if one.pool == pool), empty)

    def grown(self, later: Pools) -> tuple[Growth, ...]:
        """What each private pool gained or lost until a later moment, in the order of that moment."""
        known = dict.fromkeys((*(one.pool for one in later.private), *(one.pool for one in self.private)))
        found = [Growth(pool, self.of(pool).reserved, later.of(pool).reserved) for pool in known]
        return tuple(growth for growth in found if growth.bytes)

    def orphans(self, owned: Sequence[Pool]) -> tuple[PoolUse, ...]:
        """Private pools outside ``owned`` without a live block: nothing will free them."""
        return tuple(one for one in self.private if one.pool not in owned and not one.allocated and one.reserved)

    def __str__(self) -> str:
        if not self.private:
            return f"no private pools on {self.device}"
        return "\n".join(map(str, self.private))


@dataclass(frozen=True, slots=True)
class Growth:
    """Reserved bytes of one pool at two moments."""

    pool: Pool
    before: int
    after: int

    @property
    def bytes(self) -> int:
        """Added bytes; negative if segments were freed."""
        return self.after - self.before

    def __str__(self) -> str:
        sign = "+" if self.bytes >= 0 else ""
        return f"private pool {self.pool}: {sign}{format_size(self.bytes)} to {format_size(self.after)}"


@dataclass(frozen=True, slots=True)
class CaptureStep:
    """Reserved bytes that one capture of a series added: with a separate pool, and with a shared one."""

    name: str
    separate: int
    shared: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """A series of captures, measured twice: each with its own pool, and all with one pool in the same order."""

    steps: tuple[CaptureStep, ...]

    @property
    def separate(self) -> int:
        """Bytes of all pools when each capture has its own."""
        return sum(step.separate for step in self.steps)

    @property
    def shared(self) -> int:
        """Bytes of the one pool."""
        return sum(step.shared for step in self.steps)

    @property
    def saved(self) -> int:
        """Bytes that sharing saves."""
        return self.separate - self.shared

    @property
    def later_growth(self) -> int:
        """Bytes that captures after the first added to the shared pool: almost nothing if sizes descend."""
        return sum(step.shared for step in self.steps[1:])

    @property
    def descending(self) -> bool:
        """Whether the captures are ordered from large to small, as sharing needs."""
        sizes = [step.separate for step in self.steps]
        return sizes == sorted(sizes, reverse=True)

    def __str__(self) -> str:
        rows = [(step.name, format_size(step.separate), format_size(step.shared)) for step in self.steps]
        rows.append(("all", format_size(self.separate), format_size(self.shared)))
        columns = (Column("capture"), Column("own pool", "right"), Column("shared pool", "right"))
        lines = [str(Table(columns, tuple(rows)))]
        if not self.descending:
            lines.append("captures are not ordered from large to small: capture large sizes first")
        return "\n".join(lines)


def pools_of(recording: Recording) -> Pools:
    """The pools of a recording of a device's allocator."""
    use = fragmentation(recording)
    return Pools(recording.device, use.main, use.private)


def pool_at(recording: Recording, address: int) -> Pool | None:
    """The pool whose segment holds an address; ``None`` if no segment does."""
    found = (one.pool for one in recording.segments if one.address <= address < one.end)
    return next(found, None)


def judge_pool(pools: Pools, pool: Pool, limit: object) -> Breach | None:
    """Whether a pool keeps at most ``limit`` (bytes, or text such as ``"512MiB"``); the breach if not.

    Raises:
        ValueError: if ``limit`` is not a size.
    """
    window = Window(f"pool {pool}", pools.device, reserved_peak=pools.of(pool).reserved)
    return Limit("reserved", parse_size(limit), absolute=True).judge(window)
