"""The finished record of a recording: rows, levels, markers. Holds numbers and texts only. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from dataclasses import dataclass

from cudamem_testing.model.sizes import format_size
from cudamem_testing.operators.rows import Levels, Marker, OperatorRow


@dataclass(frozen=True, slots=True)
class Record:
    """What every operator call did to memory.

    ``rows`` are in the order of the calls; the rows of a device add up to the end minus the start of its ``levels``,
    and the highest of their peaks is its peak. ``notes`` say what is unknown.
    """

    rows: tuple[OperatorRow, ...]
    levels: tuple[Levels, ...]
    markers: tuple[Marker, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def starts(self) -> dict[str, int]:
        """Bytes on each device when the recording began."""
        return {level.device: level.start for level in self.levels}

    def __str__(self) -> str:
        lines = []
        for device, start, peak, end in self.levels:
            above = "?" if peak is None else format_size(peak - start)
            sizes = f"start {format_size(start)}, peak {above} above start, end {format_size(end - start)} above start"
            lines.append(f"{device}: {sizes}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])
