"""The finished record of a recording: rows, levels, markers. It holds numbers and texts only. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from cudamem_testing.model.sizes import format_size
from cudamem_testing.operators.reports import Reports
from cudamem_testing.operators.rows import Levels, Marker, Row


@dataclass(frozen=True, slots=True)
class OperatorTable(Reports):
    """What every operator call did to memory.

    ``rows`` are in the order of the calls; those of a device add up to the end minus the start of its ``levels``, and
    the highest of their peaks is its peak. ``notes`` say what is not known.
    """

    rows: tuple[Row, ...]
    levels: tuple[Levels, ...]
    markers: tuple[Marker, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> OperatorTable:
        """Itself: a recording and its table have the same methods."""
        return self

    def only(
        self,
        *,
        phase: str | None = None,
        module: str | None = None,
        operator: str | None = None,
        region: str | None = None,
        step: int | None = None,
        device: str | None = None,
    ) -> OperatorTable:
        """The rows of a phase, of modules and all below them, of operators, of a region, of a step, of a device.

        ``module``, ``operator`` and ``region`` are patterns as for file names. Levels stay those of the recording.

        Raises:
            ValueError: for a device that was not measured.
        """
        levels = tuple(level for level in self.levels if device is None or level.device == device)
        if not levels:
            measured = ", ".join(level.device for level in self.levels)
            raise ValueError(f"{device} is not measured (measured: {measured})")
        rows = tuple(
            row
            for row in self.rows
            if (phase is None or row.phase.value == phase)
            and (module is None or is_within(row.module, module))
            and (operator is None or fnmatchcase(row.operator, operator))
            and (region is None or fnmatchcase(row.region, region))
            and (step is None or row.step == step)
            and (device is None or row.device == device)
        )
        return replace(self, rows=rows, levels=levels)

    def __str__(self) -> str:
        lines = []
        for device, start, peak, end in self.levels:
            above = "?" if peak is None else format_size(peak - start)
            sizes = f"start {format_size(start)}, peak {above} above start, end {format_size(end - start)} above start"
            lines.append(f"{device}: {sizes}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def is_within(module: str | None, pattern: str) -> bool:
    """Whether a module, or one around it, has a name of this pattern; ``""`` is the model and so all modules of it."""
    if module is None:
        return False
    parts = module.split(".")
    return not pattern or any(fnmatchcase(".".join(parts[: place + 1]), pattern) for place in range(len(parts)))
