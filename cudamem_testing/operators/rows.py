"""What each operator call did to memory, and what changed between two of them.

A recording is a list of notes (readings of a device's counters) and of calls, each of which knows the notes just before
and just after it. Every span between two neighbouring notes belongs to exactly one row: to the call that started last
among those running, or to ``(between operators)``. So the rows of a device add up to what the recorder saw, and
the highest of their peaks is its peak. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import NamedTuple

from cudamem_testing.recorders.native_journal import Note

BETWEEN = "(between operators)"
OUTSIDE_MODEL = "()"
"""Ends the name of a module outside the model, and begins the names of its parts: ``Scale().weight``."""


class Phase(str, Enum):
    """The phase of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class OperatorRow(NamedTuple):
    """One operator call on one device, or the changes before it; sizes are bytes, ``None`` is unknown.

    ``call`` is the index of the operator call; a row between operators has that of the next call.
    ``module`` is the name of the innermost module, ``""`` the model itself, ``None`` no module. ``peak`` is the highest
    level of allocated bytes while it ran, ``after``, ``active`` and ``reserved`` the levels at its end.
    """

    call: int
    operator: str
    module: str | None
    phase: Phase
    device: str
    allocated: int
    freed: int
    allocations: int
    peak: int | None
    after: int
    active: int | None
    reserved: int | None
    retries: int | None
    region: str = ""
    step: int = 0

    @property
    def kept(self) -> int:
        """Bytes allocated and not freed by it; negative if it freed more."""
        return self.allocated - self.freed

    @property
    def before(self) -> int:
        """The level at its start."""
        return self.after - self.kept

    @property
    def temporary(self) -> int | None:
        """Workspace and temporaries: how far its peak rose above both its ends."""
        return None if self.peak is None else self.peak - max(self.before, self.after)


class OperatorCall(NamedTuple):
    """A recorded operator call: the notes before and after it, and where it ran."""

    before: int
    after: int
    operator: str
    phase: Phase
    module: str | None


class Mark(NamedTuple):
    """A mark at a note. If a phase begins there, ``phase`` is that phase."""

    note: int
    name: str
    phase: Phase | None = None
    region: str | None = None
    step: int | None = None


class Marker(NamedTuple):
    """A named moment, before the operator call with the index ``call``."""

    name: str
    call: int


class Levels(NamedTuple):
    """Allocated bytes of one device: at the start, the highest, at the end. The peak is ``None`` if unknown."""

    device: str
    start: int
    peak: int | None
    end: int


def is_within(module: str | None, pattern: str) -> bool:
    """Whether the name of a module or of a parent matches a pattern; ``""`` is the model with all its modules."""
    if module is None:
        return False
    parts = module.split(".")
    return not pattern or any(fnmatchcase(".".join(parts[: place + 1]), pattern) for place in range(len(parts)))


def is_on(device: str, wanted: object) -> bool:
    """Whether a device is the wanted one, in any spelling: ``1``, ``"cuda:1"``, or ``"cuda"`` for all cards."""
    text = f"cuda:{wanted}" if type(wanted) is int else str(wanted)
    return device == text or device.startswith(f"{text}:")


def rows_of(
    device: str, notes: Sequence[Note], calls: Sequence[OperatorCall], marks: Sequence[Mark]
) -> list[OperatorRow]:
    """The rows of one device in order. ``calls`` are in the order in which they started."""
    owners: list[int | None] = [None] * (len(notes) - 1)
    for place, call in enumerate(calls):
        owners[call.before : call.after] = [place] * (call.after - call.before)
    builder = _Builder(device, notes, calls, marks)
    for span, owner in enumerate(owners):
        builder.add(span, owner)
    builder.end_between()
    return builder.rows


def levels_of(device: str, notes: Sequence[Note]) -> Levels:
    """Start, peak and end over all notes."""
    peaks = [note.peak for note in notes[1:]]
    peak = None if any(peak < 0 for peak in peaks) else max(peaks, default=notes[0].allocated)
    return Levels(device, notes[0].allocated, peak, notes[-1].allocated)


def markers_of(calls: Sequence[OperatorCall], marks: Iterable[Mark]) -> tuple[Marker, ...]:
    """Marks with a name, each with the operator call that follows it."""
    found, place = [], 0
    for mark in marks:
        while place < len(calls) and calls[place].before < mark.note:
            place += 1
        if mark.name:
            found.append(Marker(mark.name, place))
    return tuple(found)


def overlap(calls: Sequence[OperatorCall]) -> bool:
    """Whether operators ran at the same time, on several threads."""
    end = 0
    for call in calls:
        if call.before < end:
            return True
        end = max(end, call.after)
    return False


class _Builder:
    """Turns spans between notes into rows; spans of one call or of one pause are joined."""

    def __init__(
        self, device: str, notes: Sequence[Note], calls: Sequence[OperatorCall], marks: Sequence[Mark]
    ) -> None:
        self.rows: list[OperatorRow] = []
        self._device, self._notes, self._calls, self._marks = device, notes, calls, marks
        self._places: dict[int, int] = {}  # of calls, in the list of rows
        self._begun = 0
        self._phase, self._region, self._step = Phase.OTHER, "", 0
        self._mark = 0
        self._pause: OperatorRow | None = None

    def add(self, span: int, owner: int | None) -> None:
        self._pass_marks(span)
        if owner is None:
            row = self._row(span, self._begun, BETWEEN, None, self._phase)
            self._pause = row if self._pause is None else _joined(self._pause, row)
            return
        self.end_between()
        call = self._calls[owner]
        row = self._row(span, owner, call.operator, call.module, call.phase)
        self._begun, self._phase = max(self._begun, owner + 1), call.phase
        place = self._places.setdefault(owner, len(self.rows))
        if place == len(self.rows):
            self.rows.append(row)
        else:
            self.rows[place] = _joined(self.rows[place], row)

    def end_between(self) -> None:
        pause, self._pause = self._pause, None
        if pause is not None and (pause.allocated or pause.freed or pause.retries):
            self.rows.append(pause)

    def _pass_marks(self, span: int) -> None:
        while self._mark < len(self._marks) and self._marks[self._mark].note <= span:
            mark = self._marks[self._mark]
            self._mark += 1
            self.end_between()
            self._phase = mark.phase or self._phase
            self._region = self._region if mark.region is None else mark.region
            self._step = self._step if mark.step is None else mark.step

    def _row(self, span: int, call: int, operator: str, module: str | None, phase: Phase) -> OperatorRow:
        before, after = self._notes[span], self._notes[span + 1]
        change = after.allocated - before.allocated
        allocated = after.allocated_total - before.allocated_total
        if allocated < 0:  # the allocator's counters were reset
            allocated = max(after.allocated_total, change)
        return OperatorRow(
            call,
            operator,
            module,
            phase,
            self._device,
            allocated,
            allocated - change,
            max(0, after.allocations - before.allocations),
            _known(after.peak),
            after.allocated,
            _known(after.active),
            _known(after.reserved),
            max(0, after.retries - before.retries) if after.retries >= 0 else None,
            self._region,
            self._step,
        )


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _joined(first: OperatorRow, second: OperatorRow) -> OperatorRow:
    """Two spans of one call or one pause as one row."""
    return second._replace(
        call=first.call,
        region=first.region,
        step=first.step,
        allocated=first.allocated + second.allocated,
        freed=first.freed + second.freed,
        allocations=first.allocations + second.allocations,
        peak=None if first.peak is None or second.peak is None else max(first.peak, second.peak),
        retries=None if first.retries is None or second.retries is None else first.retries + second.retries,
    )
