"""The peak: the moment at which most memory is in use, and what it is for.

The peak is shown by category, by module, and by the line that allocated, beside the peak that a recorder measured in
the same window. If the two differ, the difference is itemised: memory that the allocator did not give, and changes
without a recorded moment. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Stack
from cudamem_testing.show.notebook import InNotebook
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.trace.categories import UNKNOWN, Category
from cudamem_testing.trace.changes import Action, MemoryChange
from cudamem_testing.trace.measured import Measured
from cudamem_testing.trace.places import EventPlaces
from cudamem_testing.trace.records import Storage
from cudamem_testing.trace.timeline import Timeline

__tracebackhide__ = hide_wrong_arguments

ROWS = 10
BEFORE = "(before the recording)"
NO_MODULE = "(outside of modules)"
FOREIGN = "memory that the allocator did not give, or gave before the recorder began"
UNSEEN = "blocks that were freed without a recorded event"
OLDER = "memory that the allocator counts outside of its blocks"
ELSE = "changes that only the recorder saw, without a recorded moment"


class Held(NamedTuple):
    """One piece of memory that is live at the peak."""

    nbytes: int
    category: Category | None
    module: str
    """The modules in which it was allocated, outside in; empty outside of any."""
    operator: str
    stack: Stack
    preexisting: bool
    pointer: int | None

    @property
    def kind(self) -> str:
        """The category's name, or ``unknown``."""
        return UNKNOWN if self.category is None else self.category.name


class Part(NamedTuple):
    """Bytes and blocks of one row."""

    name: str
    nbytes: int
    pieces: int


class PeakDifference(NamedTuple):
    """A part of what the timeline's maximum exceeds the measured peak by; negative where it falls short."""

    nbytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Peak(InNotebook):
    """The peak of one device, and what was live."""

    device: str
    total: int
    """Bytes."""
    time: int
    """Nanoseconds since the first change."""
    operator: str = ""
    """The operator that was running; empty for what Python did between operators."""
    module: str = ""
    regions: tuple[str, ...] = ()
    stack: Stack = Stack()
    held: tuple[Held, ...] = field(default=(), repr=False)
    measured: int | None = None
    """The recorder's peak in the same window; ``None`` without one."""
    differences: tuple[PeakDifference, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def live(self) -> LiveSet:
        """The live blocks."""
        device = Device.parse(self.device)
        blocks = tuple(
            Block(one.nbytes, one.nbytes, device, one.pointer, one.stack, preexisting=one.preexisting)
            for one in self.held
        )
        return LiveSet(device, blocks, notes=self.notes)

    @property
    def by_category(self) -> tuple[Part, ...]:
        """Largest first."""
        return self._parts(lambda one: one.kind)

    @property
    def by_module(self) -> tuple[Part, ...]:
        """Largest first; memory from before the recording belongs to no module."""
        return self._parts(lambda one: BEFORE if one.preexisting else one.module or NO_MODULE)

    @property
    def by_line(self) -> tuple[Part, ...]:
        """By the line that allocated, largest first."""
        return self._parts(lambda one: BEFORE if one.preexisting else f"{one.stack.line}  {one.stack.library}".rstrip())

    def _parts(self, key: Callable[[Held], str]) -> tuple[Part, ...]:
        sizes: dict[str, list[int]] = {}
        for one in self.held:
            sizes.setdefault(key(one), []).append(one.nbytes)
        parts = [Part(name, sum(found), len(found)) for name, found in sizes.items()]
        return tuple(sorted(parts, key=lambda part: -part.nbytes))

    @property
    def moment(self) -> str:
        """Where the program was: ``in aten::mm, GPT2Model > GPT2MLP, region forward, at model.py:7 in forward``."""
        parts = [f"in {self.operator}" if self.operator else "between operators"]
        parts += [self.module] if self.module else []
        parts += [f"region {' / '.join(self.regions)}"] if self.regions else []
        parts += [f"at {self.stack.line}"] if self.stack.frames else []
        return ", ".join(parts)

    def text(self, most: int = ROWS) -> str:
        """The peak for people: the moment, then three tables that each add up to the total."""
        lines = [
            f"peak of {self.device}: {format_size(self.total)} in {count(len(self.held), 'block')}",
            f"  {self.moment}",
        ]
        for title, parts in (("category", self.by_category), ("module", self.by_module), ("line", self.by_line)):
            lines += [f"by {title}", *_table(parts, most)]
        lines += self._measured_lines()
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def category_lines(self) -> tuple[str, ...]:
        """The short form, for a budget that was broken."""
        return (f"for what, at the peak of {self.device}, {self.moment}:", *_table(self.by_category, ROWS))

    def _measured_lines(self) -> list[str]:
        if self.measured is None:
            return []
        if not self.differences:
            return [f"measured: {format_size(self.measured)}, the same to the byte"]
        apart = self.total - self.measured
        lines = [f"measured: {format_size(self.measured)}; {self.total} is {abs(apart)} bytes {_more(apart)}:"]
        return lines + [f"  {abs(one.nbytes)} bytes {_more(one.nbytes)}: {one.reason}" for one in self.differences]

    def __str__(self) -> str:
        return self.text()


def find_peak(timeline: Timeline, device: str | None = None, root: str | None = None) -> Peak:
    """The peak of a timeline.

    Args:
        timeline: of a trace.
        device: any spelling of one; by default the accelerator with the highest peak, else the CPU.
        root: the project's folder, whose lines are shown; by default the working folder.

    Raises:
        ValueError: when nothing happened on the device.
    """
    name = timeline.choose(device)
    place, total = timeline.maximum(name)
    places = EventPlaces(timeline.categories.flow, root)
    measured = next((one for one in timeline.measured if one.device == name), None)
    stacks = _Stacks(timeline, name, measured, places)
    held = tuple(_held(timeline, name, place, places, stacks))
    change = timeline.changes[place]
    event = change.event
    return Peak(
        device=name,
        total=total,
        time=max(change.time - timeline.start, 0),
        operator="" if event < 0 else places.operator(event),
        module="" if event < 0 else places.modules(event),
        regions=() if event < 0 else places.regions(event),
        stack=stacks.of(change),
        held=held,
        measured=None if measured is None else measured.peak,
        differences=() if measured is None else tuple(_differences(timeline, place, total, held, measured)),
        notes=timeline.notes,
    )


def stacks_of_storages(timeline: Timeline) -> dict[Storage, Stack]:
    """The stacks of the storages that a recorder saw made: they have lines, also behind Python's own syntax."""
    places = EventPlaces(timeline.categories.flow)
    found: dict[Storage, Stack] = {}
    for measured in timeline.measured:
        stacks = _Stacks(timeline, measured.device, measured, places)
        for change in timeline.changes:
            if change.device == measured.device and change.storage is not None and change.action is Action.CREATE:
                found[change.storage] = stacks.of(change)
    return found


def _live(timeline: Timeline, device: str, last: int) -> Iterable[tuple[MemoryChange, Category | None]]:
    """The entries of what is live after a change, with the category at that time."""
    entered: dict[Storage | int, tuple[MemoryChange, Category | None]] = {}
    for change in timeline.changes[: last + 1]:
        if change.device != device:
            continue
        key: Storage | int = change.pointer if change.storage is None else change.storage
        if change.action is Action.DESTROY:
            entered.pop(key, None)
        elif change.action is Action.INCREMENT_VERSION:
            if key in entered:
                entered[key] = entered[key][0], change.category
        else:
            entered[key] = change, change.category
    return entered.values()


class _Stacks:
    """Where changes were made: by the recorder's stacks, which have lines, else by the profiler's.

    If the timeline has as many blocks at an address as the recorder gave out there, they are the same, in order.
    """

    def __init__(self, timeline: Timeline, device: str, measured: Measured | None, places: EventPlaces) -> None:
        self._places = places
        self._known: dict[int, Stack] = {}
        changes: dict[int, list[MemoryChange]] = {}
        for change in timeline.changes:
            if change.device == device and change.action is Action.CREATE:
                changes.setdefault(change.pointer, []).append(change)
        for pointer, stacks in ({} if measured is None else measured.stacks_of()).items():
            made = changes.get(pointer, ())
            if len(made) == len(stacks):
                self._known.update(zip(map(id, made), stacks, strict=True))

    def of(self, change: MemoryChange) -> Stack:
        """The Python calls around a change; without frames if unknown."""
        stack = self._known.get(id(change), Stack())
        return self._places.stack(change.event) if not stack.frames and change.event >= 0 else stack


def _held(timeline: Timeline, device: str, last: int, places: EventPlaces, stacks: _Stacks) -> Iterable[Held]:
    for change, category in _live(timeline, device, last):
        known = change.event >= 0
        yield Held(
            change.nbytes,
            category,
            places.modules(change.event) if known else "",
            places.operator(change.event) if known else "",
            stacks.of(change),
            change.action is Action.PREEXISTING,
            change.pointer,
        )


def _differences(
    timeline: Timeline, place: int, total: int, held: Iterable[Held], measured: Measured
) -> Iterable[PeakDifference]:
    """The reasons why the maximum differs from the measured peak, item by item."""
    if measured.peak is None or total == measured.peak:
        return
    apart = total - measured.peak
    foreign = sum(one.nbytes for one in held if one.preexisting and one.pointer not in measured.live)
    older = sum(measured.live.values()) - measured.start if measured.start is not None else 0
    freed = {change.pointer for change in timeline.changes[: place + 1] if change.action is Action.DESTROY}
    gone = (
        0
        if measured.moves is not None
        else sum(
            nbytes
            for pointer, nbytes in measured.live.items()
            if measured.left.get(pointer) != nbytes and pointer not in freed
        )
    )
    for nbytes, reason in ((foreign, FOREIGN), (older, OLDER), (gone, UNSEEN)):
        if nbytes:
            apart -= nbytes
            yield PeakDifference(nbytes, reason)
    if apart:
        yield PeakDifference(apart, ELSE)


def _more(nbytes: int) -> str:
    return "more" if nbytes > 0 else "less"


def _table(parts: tuple[Part, ...], most: int) -> list[str]:
    kept, rest = parts[:most], parts[most:]
    rows = [(format_size(part.nbytes), count(part.pieces, "block"), part.name) for part in kept]
    if rest:
        size, pieces = sum(part.nbytes for part in rest), sum(part.pieces for part in rest)
        rows.append((format_size(size), count(pieces, "block"), f"({len(rest)} more)"))
    return Table((Column("", "right"), Column("", "right"), Column("")), tuple(rows)).lines(header=False, indent=2)
