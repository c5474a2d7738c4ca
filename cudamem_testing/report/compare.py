"""Compares two reports: tests that use more or less, as a table for the terminal or a pull request.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cudamem_testing.model.baselines import Measured
from cudamem_testing.model.changes import Change, Tolerance, shown
from cudamem_testing.model.devices import Device
from cudamem_testing.model.records import RunRecord
from cudamem_testing.model.sizes import count
from cudamem_testing.recorders.identity import difference, without_threads
from cudamem_testing.records.update import measured_by_test
from cudamem_testing.report.failures import failure_lines
from cudamem_testing.show.printable import one_line
from cudamem_testing.show.tables import Column, Table, in_markdown

_COLUMNS = (
    Column("metric"),
    Column("before", "right"),
    Column("after", "right"),
    Column("change", "right"),
    Column("share", "right"),
    Column("device"),
    Column("", "left"),
    Column("test", elastic=True, paths=True, code=True),
)


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One metric of one test on one device, in both reports; ``broken`` where it grew by more than was allowed."""

    test: str
    device: Device
    change: Change
    broken: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table."""
        change, metric = self.change, self.change.metric
        growth = ("+" if change.growth > 0 else "-") + shown(metric, abs(change.growth))
        sizes = change.before.text(metric), change.after.text(metric)
        return metric, *sizes, growth, change.share, str(self.device), "FAIL" if self.broken else "", self.test

    def __str__(self) -> str:
        return " ".join(filter(None, self.cells))


@dataclass(frozen=True, slots=True)
class Compared:
    """The changes between two reports, largest first, and what could not be compared.

    ``apart`` counts tests that were measured on different devices, ``absent`` names metrics that no test has in both,
    ``failures`` say why one of the runs failed apart from its tests, so that some may be missing.
    """

    rows: tuple[ComparedRow, ...]
    compared: int
    only_before: int
    only_after: int
    elsewhere: Mapping[str, int]
    across: bool
    apart: int = 0
    absent: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[ComparedRow, ...]:
        """The rows that fail."""
        return tuple(row for row in self.rows if row.broken)

    @property
    def lines(self) -> list[str]:
        """What is said beside the table."""
        changed = count(len({row.test for row in self.rows}), "test")
        said = [f"{changed} changed of {self.compared} compared"]
        said += [f"{count(self.only_before, 'test')} passed only in the first report"] if self.only_before else []
        said += [f"{count(self.only_after, 'test')} passed only in the second report"] if self.only_after else []
        hint = "" if self.across else " (--across-env compares them)"
        word = "compared across" if self.across else "not compared"
        said += [f"{count(number, 'test')} {word}: {reason}{hint}" for reason, number in self.elsewhere.items()]
        said += [f"{count(self.apart, 'test')} not compared: measured on different devices"] if self.apart else []
        said += [f"in no test of both reports: {', '.join(self.absent)}"] if self.absent else []
        said += failure_lines(self.failures)
        if self.broken:
            said.append(f"{count(len(self.broken), 'change')} beyond what is allowed")
        return [*map(one_line, said)]

    def table(self, most: int | None = None) -> Table:
        """The table of the first rows; those that fail are among them."""
        kept = self.rows if most is None else (*self.broken, *(row for row in self.rows if not row.broken))[:most]
        cells = [row.cells for row in sorted(kept, key=self.rows.index)]
        used = [place for place, column in enumerate(_COLUMNS) if column.title or any(row[place] for row in cells)]
        return Table(
            tuple(_COLUMNS[place] for place in used), tuple(tuple(row[place] for place in used) for row in cells)
        )

    def text(self, most: int | None = None, width: int | None = None) -> str:
        """For the terminal."""
        table = self.table(most)
        return "\n".join((*(table.lines(width) if table.rows else ()), *self.lines))

    def markdown(self, most: int | None = None) -> str:
        """For a pull request."""
        table = self.table(most)
        items = (f"- {in_markdown(line)}" for line in self.lines)
        return "\n".join((*((table.markdown(), "") if table.rows else ()), *items))

    def __str__(self) -> str:
        return self.text()


def compare_runs(
    before: RunRecord, after: RunRecord, conditions: Mapping[str, Tolerance | None], *, across: bool = False
) -> Compared:
    """Compare what passed in both. ``conditions`` maps a metric to what it may grow by, ``None`` to just show it.

    Numbers of different environments are compared only ``across`` them; of different numbers of threads always.
    """
    old, new = _by_test(before), _by_test(after)
    rows: list[ComparedRow] = []
    elsewhere: Counter[str] = Counter()
    compared = apart = 0
    absent = dict.fromkeys(conditions)
    for test, measured in new.items():
        if test not in old:
            continue
        pairs = [*_pairs(old[test], measured)]
        apart += not pairs
        reasons = dict.fromkeys(
            difference(one.environment, other.environment) for one, other in pairs if not _is_same(one, other)
        )
        reasons.pop("", None)
        elsewhere.update([*reasons])
        same = [(one, other) for one, other in pairs if across or _is_same(one, other)]
        compared += bool(same)
        for one, other in same:
            rows += _rows(test, one, other, conditions)
            for metric in one.values.keys() & other.values.keys():
                absent.pop(metric, None)
    places = {metric: place for place, metric in enumerate(conditions)}
    rows.sort(key=lambda row: (not row.broken, places[row.change.metric], -abs(row.change.growth), row.test))
    gone, added = len(old.keys() - new.keys()), len(new.keys() - old.keys())
    missed = tuple(absent) if compared else ()
    failures = (*before.failures, *after.failures)
    return Compared(tuple(rows), compared, gone, added, dict(elsewhere.most_common()), across, apart, missed, failures)


def _by_test(run: RunRecord) -> dict[str, tuple[Measured, ...]]:
    return {test: measured for test, measured in measured_by_test(run.tests).items() if measured}


def _is_same(one: Measured, other: Measured) -> bool:
    """Whether their numbers can be compared."""
    return without_threads(one.environment) == without_threads(other.environment)


def _pairs(before: Sequence[Measured], after: Sequence[Measured]) -> Iterable[tuple[Measured, Measured]]:
    """The measurements of one device; of one environment where both have it."""
    for other in after:
        fitting = [one for one in before if one.device == other.device]
        same = [one for one in fitting if one.environment == other.environment]
        alike = [one for one in fitting if _is_same(one, other)]
        for one in (same or alike or fitting)[:1]:
            yield one, other


def _rows(
    test: str, before: Measured, after: Measured, conditions: Mapping[str, Tolerance | None]
) -> Iterable[ComparedRow]:
    for metric, tolerance in conditions.items():
        if metric in before.values and metric in after.values:
            old = before.values[metric]
            slack = 0 if tolerance is None else tolerance.slack(metric, old.high)
            change = Change(metric, old, after.values[metric], slack)
            if change.growth:
                yield ComparedRow(test, after.device, change, tolerance is not None and change.grew)
