"""Baselines: what a test took on one device in one environment. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cudamem_testing.model.changes import Spread
from cudamem_testing.model.devices import Device

#: How many lines of the live set at the peak are kept.
TOP = 12


@dataclass(frozen=True, slots=True)
class PeakLine:
    """Blocks that were live at the peak and came from one line of code.

    ``name`` is ``file::qualname`` and ``text`` what is written at the line, so that edits elsewhere change neither;
    ``nth`` distinguishes equal lines of one function, counted from 0. Without a text it is the whole
    function. ``bytes`` are those of ``blocks`` blocks, of which autograd kept ``saved`` bytes for backward.
    ``recorded`` is whether grad mode was on when most of them were made; ``None`` where that is unknown.
    """

    name: str
    bytes: int
    text: str = ""
    blocks: int = 0
    saved: int = 0
    nth: int = 0
    recorded: bool | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What is recorded: numbers by metric, and the largest lines of the live set at the peak, largest first.

    ``body`` is the fingerprint of the test's source by which it is found again under another name, ``lines`` are those
    of all lines that allocated, four digits each: a line among them is not new, whether it was live at the peak or not.
    """

    values: Mapping[str, Spread] = field(default_factory=dict)
    top: tuple[PeakLine, ...] = ()
    body: str = ""
    lines: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one test took on one device.

    ``environment`` says what the numbers depend on. ``values`` holds every known metric, ``metrics`` names those that
    its baseline keeps. ``top`` is ``None`` if no closer look was taken, as for a test within its tolerance; ``lines``
    belong to it. ``asked`` is whether a marker asks for the baseline. ``recorded`` holds the numbers by metric that it
    was compared with; empty where there is no baseline, or the test is not compared with it.
    """

    device: Device
    environment: str
    values: Mapping[str, Spread] = field(default_factory=dict)
    top: tuple[PeakLine, ...] | None = None
    metrics: tuple[str, ...] = ()
    asked: bool = False
    lines: str = ""
    recorded: Mapping[str, Spread] = field(default_factory=dict)

    def with_values(self, values: Mapping[str, Spread]) -> Measured:
        """A copy with other numbers; made for every test."""
        kept = self.top, self.metrics, self.asked, self.lines, self.recorded
        return Measured(self.device, self.environment, values, *kept)

    def compared(self, metrics: tuple[str, ...], entry: Entry | None) -> Measured:
        """A copy that names what its baseline keeps, with the numbers of the one it has; made for every test."""
        recorded = {} if entry is None else {name: entry.values[name] for name in metrics if name in entry.values}
        kept = self.values, self.top, metrics, self.asked, self.lines, recorded
        return Measured(self.device, self.environment, *kept)

    def but(self, **changes: object) -> Measured:
        """A copy with other values."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def entry(self) -> Entry:
        """What of it a baseline keeps."""
        kept = {metric: self.values[metric] for metric in self.metrics if metric in self.values}
        return Entry(kept, self.top or (), lines=self.lines)

    @property
    def idle(self) -> bool:
        """Whether the test allocated nothing."""
        return self.values.get("allocations") == Spread(0, 0)


def fold(runs: Sequence[Sequence[Measured]]) -> tuple[Measured, ...]:
    """Several runs of one test as one: the spread of each number, and what was live in the run that took most.

    A run whose peak is not known does not count beside others.
    """
    found: dict[tuple[Device, str], Measured] = {}
    for one in (measured for run in runs for measured in run):
        key = one.device, one.environment
        old = found.get(key)
        if old is None or ("requested" in one.values and "requested" not in old.values):
            found[key] = one
            continue
        if "requested" in old.values and "requested" not in one.values:
            continue
        both = {metric: old.values[metric] | one.values[metric] for metric in old.values if metric in one.values}
        higher = "requested" in both and one.values["requested"].high > old.values["requested"].high
        looked = one if higher or old.top is None else old
        found[key] = old.but(values=both, top=looked.top, lines=looked.lines)
    return tuple(found.values())
