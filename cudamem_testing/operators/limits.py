"""Limits on phases and modules: turns them into windows, which the package's limits judge.

A phase or a module can run many times. Its window is that of the run that rose highest above its own start, and counts
what its operators kept, their allocations and retries in all runs. Changes between operators belong to phases and
not to modules, as in the tables. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cudamem_testing.model.devices import Device
from cudamem_testing.model.evidence import Evidence, Shown
from cudamem_testing.model.limits import Breach, Budget
from cudamem_testing.model.windows import Window
from cudamem_testing.operators.record import Record
from cudamem_testing.operators.rows import BETWEEN, OperatorRow, Phase, is_within
from cudamem_testing.operators.summaries import summary
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.windows.judge import Judge
from cudamem_testing.windows.regions import OverBudget

__tracebackhide__ = hide_wrong_arguments

SHOWN = 5


def windows_of(table: Record, phase: str | None, module: str | None) -> tuple[Window, ...]:
    """One window for each device on which the phase or the module ran.

    Raises:
        ValueError: if no operator ran there: a limit on nothing would always hold.
    """
    known = [one.value for one in Phase]
    if phase is not None and phase not in known:
        raise ValueError(f"phase {phase!r} is not known: write {', '.join(known)}")
    name = " of ".join(filter(None, (phase, module and f"module {module}"))) or "all operators"
    found = []
    for level in table.levels:
        rows = [row for row in table.rows if row.device == level.device]
        runs = [*_runs(rows, phase, module)]
        if runs:
            found.append(_window(name, level.device, runs, pauses=module is None))
    if not found:
        ran = ", ".join(dict.fromkeys(row.phase.value for row in table.rows)) or "none"
        raise ValueError(f"no operator ran in {name} (phases that ran: {ran})")
    return tuple(found)


def enforce(table: Record, budget: Budget, phase: str | None, module: str | None) -> None:
    """Hold a phase or module to a budget.

    Raises:
        OverBudget: if a limit is broken, with the operators there that allocated most.
        ValueError: if no operator ran there.
    """
    __tracebackhide__ = True

    def largest(breach: Breach) -> Sequence[Evidence]:
        rows = [
            row
            for row in table.rows
            if (phase is None or row.phase.value == phase) and (module is None or is_within(row.module, module))
        ]
        return [Shown(tuple(summary(rows, table.starts, SHOWN, 0).lines()))]

    judge = Judge(lambda: largest)
    broken = judge.all([budget], windows_of(table, phase, module))
    if broken:
        raise OverBudget(broken)


def _runs(rows: Sequence[OperatorRow], phase: str | None, module: str | None) -> Iterator[list[OperatorRow]]:
    """Neighbouring rows of the phase and module; changes between two of them are part of their run."""
    run: list[OperatorRow] = []
    pause: list[OperatorRow] = []
    for row in rows:
        if row.operator == BETWEEN and (module is not None or phase is None or row.phase.value == phase):
            pause.append(row)
        elif (phase is None or row.phase.value == phase) and (module is None or is_within(row.module, module)):
            run += [*(pause if run or module is None else []), row]
            pause = []
        else:
            if run:
                yield [*run, *(pause if module is None else [])]
            run, pause = [], []
    if run:
        yield [*run, *(pause if module is None else [])]


def _window(name: str, device: str, runs: Sequence[Sequence[OperatorRow]], *, pauses: bool) -> Window:
    """A window with the levels of the runs, which counts the operators and, with ``pauses``, changes between them."""
    kind, _, index = device.partition(":")
    start, peak = max(((run[0].before, _peak(run)) for run in runs), key=lambda pair: (pair[1] or pair[0]) - pair[0])
    reserved = [run[-1].reserved for run in runs]
    rows = [row for run in runs for row in run if pauses or row.operator != BETWEEN]
    retries = [row.retries for row in rows]
    return Window(
        name=name,
        device=Device(kind, int(index) if index else None),
        start=start,
        peak=peak,
        end=runs[0][-1].after if pauses and len(runs) == 1 else None,
        reserved_start=runs[0][0].reserved,
        reserved_peak=None if None in reserved else max(one for one in reserved if one is not None),
        retained=sum(row.kept for row in rows),
        allocations=sum(row.allocations for row in rows),
        retries=None if None in retries else sum(one for one in retries if one is not None),
    )


def _peak(run: Sequence[OperatorRow]) -> int | None:
    peaks = [row.peak for row in run]
    return None if None in peaks else max(peak for peak in peaks if peak is not None)
