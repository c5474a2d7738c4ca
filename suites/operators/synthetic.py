"""Rows and tables made by hand."""

from __future__ import annotations

from typing import Any

from cudamem_testing.operators.rows import BETWEEN, Levels, Marker, OperatorRow, Phase
from cudamem_testing.operators.table import OperatorTable

FORWARD, BACKWARD, OPTIMIZER, OTHER = Phase
KIB = 1024


class Maker:
    """Rows one after the other; levels follow from what each allocates and frees."""

    def __init__(self, device: str = "cpu", start: int = 0) -> None:
        self.rows: list[OperatorRow] = []
        self.device, self.start, self.level, self.calls = device, start, start, 0

    def add(
        self,
        operator: str,
        module: str | None,
        phase: Phase,
        allocated: int = 0,
        freed: int = 0,
        temporary: int = 0,
        **more: Any,
    ) -> Maker:
        """A row; ``temporary`` is part of what is allocated and freed."""
        before, self.level = self.level, self.level + allocated - freed
        peak = max(before, self.level) + temporary
        row = OperatorRow(
            self.calls,
            operator if operator == BETWEEN else f"aten::{operator}",
            module,
            phase,
            self.device,
            allocated,
            freed,
            1 if allocated else 0,
            peak,
            self.level,
            None,
            None,
            0,
        )
        self.rows.append(row._replace(**more))
        self.calls += operator != BETWEEN
        return self

    def table(self, *markers: Marker, notes: tuple[str, ...] = ()) -> OperatorTable:
        peaks = [row.peak for row in self.rows]
        peak = None if None in peaks else max([self.start, *(one for one in peaks if one is not None)])
        return OperatorTable(tuple(self.rows), (Levels(self.device, self.start, peak, self.level),), markers, notes)


def step(start: int = 10 * KIB) -> Maker:
    """A small training step."""
    maker = Maker(start=start)
    maker.add("addmm", "body.0", FORWARD, 4 * KIB)
    maker.add("relu", "body.1", FORWARD, 4 * KIB)
    maker.add(BETWEEN, None, FORWARD, 0, 2 * KIB)
    maker.add("addmm", "head", FORWARD, 1 * KIB + 100)
    maker.add("add_", "", FORWARD)
    maker.add("mse_loss", "MSELoss()", FORWARD, 2052, 2048, temporary=2048)
    maker.add("ones_like", None, OTHER, 4)
    maker.add("mm", "head", BACKWARD, 2 * KIB)
    maker.add(BETWEEN, None, BACKWARD, 0, 1 * KIB)
    maker.add("mm", "body.0", BACKWARD, 8 * KIB, 4 * KIB, temporary=3 * KIB)
    maker.add("addcdiv_", None, OPTIMIZER, 16 * KIB, 16 * KIB, temporary=16 * KIB)
    maker.add(BETWEEN, None, OTHER, 0, 5 * KIB)
    return maker
