"""Compares two runs: which operators of which modules allocate more than before. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from cudamem_testing.model.sizes import format_size
from cudamem_testing.operators.record import Record
from cudamem_testing.operators.rows import BETWEEN
from cudamem_testing.operators.summaries import module_text
from cudamem_testing.show.tables import Column, Table

CallKey = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """Bytes that the calls of one operator in one module and phase allocated, in the earlier and the later run."""

    phase: str
    module: str
    operator: str
    device: str
    before: int
    after: int

    @property
    def growth(self) -> int:
        """Bytes more than before; negative if fewer."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class OperatorComparison:
    """What changed between two runs, the largest growth first. ``peaks`` are above the start of each run."""

    changes: tuple[OperatorChange, ...]
    peaks: tuple[OperatorChange, ...]
    notes: tuple[str, ...] = ()

    @property
    def grew(self) -> tuple[OperatorChange, ...]:
        """Changes that allocate more than before."""
        return tuple(change for change in self.changes if change.growth > 0)

    def table(self) -> Table:
        """What grew, and the peaks; with the device if there are several."""
        changes = (*self.grew, *self.peaks)
        several = len({change.device for change in changes}) > 1
        columns = (
            Column("phase"),
            Column("module", elastic=True),
            Column("operator"),
            *((Column("device"),) if several else ()),
            Column("before", "right"),
            Column("after", "right"),
            Column("growth", "right"),
        )
        return Table(columns, tuple(_line(change, several) for change in changes))

    def __str__(self) -> str:
        return "\n".join([str(self.table()), *(f"note: {note}" for note in self.notes)])


def compare(earlier: Record, later: Record) -> OperatorComparison:
    """Compare what operators allocated, by phase, module, operator and device.

    If each run measured one device, the runs are compared even if the devices differ.
    """
    notes: tuple[str, ...] = ()
    before_on, after_on = ([level.device for level in table.levels] for table in (earlier, later))
    if before_on != after_on and len(before_on) == len(after_on) == 1:
        notes = (f"before was on {before_on[0]}, after on {after_on[0]}",)
        earlier = _moved(earlier, after_on[0])
    before, after = _allocated(earlier), _allocated(later)
    changes = [
        OperatorChange(*key, before[key], after[key]) for key in {**before, **after} if before[key] != after[key]
    ]
    changes.sort(key=lambda change: (-change.growth, change.phase, change.module, change.operator, change.device))
    peaks, peaks_later = _peaks(earlier), _peaks(later)
    both = [device for device in peaks if device in peaks_later]
    risen = tuple(OperatorChange("", "", "(peak)", device, peaks[device], peaks_later[device]) for device in both)
    return OperatorComparison(tuple(changes), risen, notes)


def _moved(table: Record, device: str) -> Record:
    """The table of one device, relabelled as another."""
    return replace(
        table,
        rows=tuple(row._replace(device=device) for row in table.rows),
        levels=tuple(level._replace(device=device) for level in table.levels),
    )


def _allocated(table: Record) -> Counter[CallKey]:
    found: Counter[CallKey] = Counter()
    for row in table.rows:
        module = "" if row.operator == BETWEEN else module_text(row.module)
        found[row.phase.value, module, row.operator, row.device] += row.allocated
    return found


def _peaks(table: Record) -> dict[str, int]:
    return {device: peak - start for device, start, peak, _ in table.levels if peak is not None}


def _line(change: OperatorChange, device: bool) -> tuple[str, ...]:
    sizes = (change.before, change.after, change.growth)
    where = (change.device,) if device else ()
    return change.phase, change.module, change.operator, *where, *map(format_size, sizes)
