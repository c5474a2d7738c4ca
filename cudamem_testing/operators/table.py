"""Tables, checks and files of a recording: the same methods for a recording and its table. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from cudamem_testing.model.limits import budget as parse_limits
from cudamem_testing.model.sizes import parse_size
from cudamem_testing.operators import summaries
from cudamem_testing.operators.compare import compare
from cudamem_testing.operators.limits import enforce
from cudamem_testing.operators.picture import plot
from cudamem_testing.operators.record import Record
from cudamem_testing.operators.rows import Phase, is_on, is_within
from cudamem_testing.operators.summary_text import compare_summaries
from cudamem_testing.operators.table_files import load, save
from cudamem_testing.records.expected.check import assert_text
from cudamem_testing.show.notebook import InNotebook
from cudamem_testing.show.tables import Table
from cudamem_testing.show.usage import hide_wrong_arguments, refuse_unknown
from cudamem_testing.trace.columns import compare_columns

if TYPE_CHECKING:
    from cudamem_testing.operators.compare import OperatorComparison

__tracebackhide__ = hide_wrong_arguments

Expected = str | Mapping[str, str] | None


class Reports(InNotebook):
    """Tables, checks and files; sizes are bytes, and ``min_bytes`` (an ``int`` or ``"4KiB"``) hides smaller ones."""

    __slots__ = ()

    @property
    def table(self) -> OperatorTable:
        """The finished table."""
        raise NotImplementedError

    def only(
        self,
        *,
        phase: str | None = None,
        module: str | None = None,
        operator: str | None = None,
        region: str | None = None,
        step: int | None = None,
        device: object = None,
    ) -> OperatorTable:
        """The rows of a phase, of modules and all below them, of operators, of a region, of a step, of a device.

        ``module``, ``operator`` and ``region`` are patterns as for file names, ``device`` is any spelling of a device
        or a kind. Levels stay those of the recording.

        Raises:
            ValueError: for an unknown phase, or a device that was not measured.
        """
        table = self.table
        if phase is not None and phase not in [*Phase]:
            raise ValueError(f"phase {phase!r} is not known: write {', '.join(one.value for one in Phase)}")
        levels = tuple(level for level in table.levels if device is None or is_on(level.device, device))
        if not levels:
            measured = ", ".join(level.device for level in table.levels)
            raise ValueError(f"{device} is not measured (measured: {measured})")
        rows = tuple(
            row
            for row in table.rows
            if (phase is None or row.phase.value == phase)
            and (module is None or is_within(row.module, module))
            and (operator is None or fnmatchcase(row.operator, operator))
            and (region is None or fnmatchcase(row.region, region))
            and (step is None or row.step == step)
            and (device is None or is_on(row.device, device))
        )
        return replace(table, rows=rows, levels=levels)

    def summary(self, top: int = 20, *, min_bytes: int | str = 0) -> Table:
        """The ``top`` operator calls that allocated most, the rest of them, and the changes between operators."""
        _check_count("top", top)
        return summaries.summary(self.table.rows, self.table.starts, top, parse_size(min_bytes))

    def by_module(
        self, depth: int | None = None, *, min_bytes: int | str = 0, columns: Iterable[str] = summaries.COLUMNS
    ) -> Table:
        """The tree of modules down to ``depth`` levels below the model, each including its submodules.

        ``columns`` are some of ``operators``, ``allocated``, ``freed``, ``forward kept``, ``backward kept``,
        ``temporary`` and ``peak``.

        Raises:
            ValueError: for another column, and for none.
        """
        _check_count("depth", depth)
        wanted = _check_columns(columns)
        return summaries.by_module(self.table.rows, self.table.starts, depth, parse_size(min_bytes), wanted)

    def by_operator(self, *, min_bytes: int | str = 0) -> Table:
        """Calls grouped by operator, the largest allocations first; calls without memory form one row."""
        return summaries.by_operator(self.table.rows, self.table.starts, parse_size(min_bytes))

    def by_phase(self) -> Table:
        """Forward, backward, optimizer, other; each with the changes between its operators."""
        return summaries.by_phase(self.table.rows, self.table.starts, 0)

    def assert_summary(self, expected: Expected = None, *, top: int = 20, min_bytes: int | str = 0) -> None:
        """Compare the summary with the text at the call, which ``--cudamem-update=expected`` writes.

        ``expected`` may have a text for each kind of device.

        Raises:
            TextMismatchError: the texts differ (an ``AssertionError`` that says what has changed, with a diff).
        """
        __tracebackhide__ = True
        text = str(self.summary(top, min_bytes=min_bytes))
        assert_text(text, expected, key=self._kind(), depth=2, compare=compare_summaries)

    def assert_by_module(
        self,
        expected: Expected = None,
        *,
        depth: int | None = None,
        min_bytes: int | str = 0,
        columns: Iterable[str] | None = None,
    ) -> None:
        """Compare the tree of modules with the text at the call, as ``assert_summary``.

        ``columns`` are those of the text by default. A new text has those that stay the same from one version of torch
        to the next, which are all but ``operators`` and ``temporary``.

        Raises:
            TextMismatchError: the texts differ (an ``AssertionError``).
            ValueError: for a column that is not known, and for none.
        """
        __tracebackhide__ = True
        asked = None if columns is None else _check_columns(columns)

        def text(wanted: str | None) -> str:
            return str(self.by_module(depth, min_bytes=min_bytes, columns=asked or summaries.columns_of(wanted)))

        assert_text(text, expected, key=self._kind(), depth=2, compare=compare_columns)

    def assert_budget(
        self,
        *,
        phase: str | None = None,
        module: str | None = None,
        peak: object = None,
        reserved: object = None,
        retained: object = None,
        allocations: object = None,
        retries: object = None,
        at_least: object = None,
        device: object = None,
        absolute: bool = False,
        **unknown: object,
    ) -> None:
        """Hold a phase, or modules (a name or a pattern, with all below), to limits: those of ``memory_budget``.

        ``peak`` is above the start of the phase or of the module's run, the highest of all runs; ``retained`` is what
        its operators kept, in all runs together.

        Raises:
            LimitError: for wrong arguments.
            TypeError: for unknown ones.
            ValueError: if no operator ran there.
            OverBudget: if a limit is broken, with the operators there that allocated most.
        """
        __tracebackhide__ = True
        refuse_unknown(self.assert_budget, unknown)

        limits = parse_limits(
            peak=peak,
            reserved=reserved,
            retained=retained,
            allocations=allocations,
            retries=retries,
            at_least=at_least,
            device=device,
            absolute=absolute,
            source="assert_budget(...)",
        )
        enforce(self.table, limits, phase, module)

    def compare(self, earlier: Reports) -> OperatorComparison:
        """What grew since an earlier run, recorded or loaded."""
        return compare(earlier.table, self.table)

    def save(self, path: str | Path) -> Path:
        """Write everything as JSON, atomically; :func:`cudamem_testing.load_operators` reads it.

        Raises:
            OSError: if the file cannot be written.
        """
        return save(self.table, path)

    def plot(self, path: str | Path, *, device: object = None) -> Path:
        """Draw allocated, active and reserved bytes over operator calls as PNG or SVG, by the ending of ``path``.

        Phases are shaded, markers and the peak are named. ``device`` is by default the first measured one.

        Raises:
            ModuleNotFoundError: without matplotlib (``pip install 'cudamem_testing[plot]'``).
            ValueError: for another ending, or a device that was not measured.
            OSError: if the file cannot be written.
        """
        return plot(self.table, path, device)

    def _kind(self) -> str:
        return self.table.levels[0].device.partition(":")[0]


@dataclass(frozen=True, slots=True)
class OperatorTable(Record, Reports):
    """The record of a recording, with tables and checks; see :class:`.record.Record` for its fields."""

    @property
    def table(self) -> OperatorTable:
        """The table itself: a recording and its table have the same methods."""
        return self


def load_operators(path: str | Path) -> OperatorTable:
    """Read a table of operators that was saved.

    Raises:
        OperatorFileError: if the file cannot be read or holds no table.
    """
    found = load(path)
    return OperatorTable(found.rows, found.levels, found.markers, found.notes)


def _check_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """Columns of the tree of modules, in their order."""
    given = [columns] if isinstance(columns, str) else [*columns]
    unknown = [name for name in given if name not in summaries.COLUMNS]
    if unknown or not given:
        what = f"there is no column {unknown[0]!r}" if unknown else "columns is empty"
        raise ValueError(f"{what}: write some of {', '.join(summaries.COLUMNS)}")
    return tuple(name for name in summaries.COLUMNS if name in given)


def _check_count(name: str, value: object) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError(f"{name}={value!r} is not a number: write 0 or more")
