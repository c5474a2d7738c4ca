"""Holds the sizes of a parametrized test to a promise of growth, once all of them have run. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Outgrew
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.promises import Promise, PromisedSize
from cudamem_testing.model.records import Unchecked
from cudamem_testing.model.scaling import Series, TooFewSizes
from cudamem_testing.model.sizes import count
from cudamem_testing.model.windows import Window
from cudamem_testing.snapshots.evidence import Records
from cudamem_testing.snapshots.explanations import lines_at_peak

LEAST_SIZES = 3


class Measured(NamedTuple):
    """The peak of one size above its start, by line of the project as well."""

    peak: int
    lines: Mapping[str, int]


class Promises:
    """What the tests of a process measured for their promises."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._groups: dict[tuple[object, ...], tuple[PromisedSize, dict[int, Measured]]] = {}
        self._undecided: dict[tuple[object, ...], str] = {}

    def add(self, promised: PromisedSize, calls: Sequence[Window]) -> list[Finding]:
        """One size has run; findings once all of them have."""
        found: list[Finding] = []
        for window in calls:
            device = window.device
            if device.pseudo or (promised.device is not None and Device.parse(promised.device) != device):
                continue
            key = promised.test, promised.others, device
            _, measured = self._groups.setdefault(key, (promised, {}))
            if window.peak_growth is not None:
                measured[promised.size] = Measured(window.peak_growth, lines_at_peak(self._records, window))
            if measured.keys() >= {*promised.sizes} and len(measured) >= LEAST_SIZES:
                found += self._judge(key, promised, device, measured)
        return found

    def unchecked(self) -> Iterator[Unchecked]:
        """The promises that were not judged, and why."""
        for key, (promised, measured) in self._groups.items():
            if key in self._undecided:
                yield Unchecked("growth promise", f"{promised.test}: {self._undecided[key]}")
            elif not (measured.keys() >= {*promised.sizes} and len(measured) >= LEAST_SIZES):
                ran = f"{len(measured)} of {count(len(promised.sizes), 'size')} measured in this process"
                yield Unchecked("growth promise", f"{promised.test}: {ran}, at least {LEAST_SIZES} are needed")

    def _judge(
        self, key: tuple[object, ...], promised: PromisedSize, device: Device, measured: Mapping[int, Measured]
    ) -> list[Finding]:
        sizes = tuple(sorted(measured))
        lines = sorted({line for one in measured.values() for line in one.lines})
        by_line = tuple((line, tuple(measured[size].lines.get(line, 0) for size in sizes)) for line in lines)
        series = Series(promised.over, sizes, tuple(measured[size].peak for size in sizes), lines=dict(by_line))
        try:
            broken = series.outgrows(Promise.parse(promised.promise).of(promised.over))
        except TooFewSizes as reason:
            self._undecided[key] = str(reason)
            return []
        if not broken:
            return []
        fact = Outgrew(promised.promise, promised.over, sizes, series.bytes, by_line)
        return [Finding(Kind.BUDGET, Verdict.OVER, Severity.FAIL, fact, device=device)]
