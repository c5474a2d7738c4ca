"""Recording: an allocator's record, in one model for every device.

CUDA's caching allocator and the project's CPU recorder both know three things: the blocks that are live now, the last
events that led here, and where each allocation was made. A :class:`Recording` holds them so that a million events stay
cheap: events are parallel columns of machine integers, and stacks are numbers that become :class:`Stack` objects only
when a block's stack is needed.

All sizes and addresses are bytes. A moment is a position between events: moment ``i`` lies before event ``i``, moment
``len(events)`` is the end, the state in which the recording was taken. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType

from cudamem_testing.model.devices import Device
from cudamem_testing.model.pools import MAIN_POOL, Pool
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Stack
from cudamem_testing.show.notebook import InNotebook

Extra = Mapping[str, object]
NO_STACK = -1


class SnapshotError(ValueError):
    """A snapshot that cannot be read; the text says what was found, where, and what is readable."""


class Kind(IntEnum):
    """Kinds of events.

    A block is ``ALLOC``-ated; the program frees it at ``FREE_REQUESTED`` (from then on the allocator does not
    count it as allocated) and its memory can be used again from ``FREE_COMPLETED`` on (until then it counts as
    active and as requested, waiting for another stream). The CPU has no such delay and only has ``FREE_REQUESTED``.
    The address of ``OOM`` is the device's free bytes. ``ANNOTATE`` attaches text, its ``extra``, to a
    block. ``OTHER`` is a kind of a torch newer than this package.
    """

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    ANNOTATE = 9
    OTHER = 10


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory that the allocator took from the driver; for an expandable segment, one mapped range."""

    address: int
    size: int
    stream: int = 0
    pool: Pool = MAIN_POOL
    expandable: bool = False
    small: bool | None = None
    stack: int = NO_STACK
    extra: Extra | None = None

    @property
    def end(self) -> int:
        """The first address after it."""
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block that is live when the recording is taken, or still active because another stream may use it."""

    address: int
    size: int
    requested: int
    stack: int = NO_STACK
    stream: int = 0
    pool: Pool = MAIN_POOL
    awaiting_free: bool = False
    sequence: int | None = None
    owner: int | None = None
    thread: int | None = None
    extra: Extra | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """Columns of equal length, one entry per event, oldest first; a column that the recorder lacks is ``None``.

    ``sizes`` are requested bytes on CUDA (the rounding of an allocation is not recorded there) and allocated bytes on
    the CPU. ``times`` are microseconds, ``grads`` is 1 for an allocation while its thread's grad mode was on.
    ``extra`` holds what this package does not know, by position.
    """

    kinds: bytes = b""
    addresses: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    stacks: array[int] = field(default_factory=lambda: array("q"))
    streams: array[int] | None = None
    times: array[int] | None = None
    pools: array[int] | None = None
    sequences: array[int] | None = None
    owners: array[int] | None = None
    threads: array[int] | None = None
    grads: bytes | None = None
    extra: Mapping[int, Extra] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        columns = (self.streams, self.times, self.pools, self.sequences, self.owners, self.threads, self.grads)
        lengths = {len(column) for column in (self.addresses, self.sizes, self.stacks, *columns) if column is not None}
        if lengths != {len(self.kinds)}:
            raise SnapshotError(f"columns of events differ in length: {sorted(lengths | {len(self.kinds)})}")

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, slots=True)
class Settings:
    """Allocator settings that decide how large a block becomes; ``raw`` holds all of them as they were recorded.

    ``max_split_size`` is ``None`` if blocks of any size may be split. ``roundup`` are the divisions between powers
    of two, one for each power from 1 MiB up.
    """

    expandable: bool = False
    max_split_size: int | None = None
    roundup: tuple[int, ...] = ()
    raw: Extra | None = None


@dataclass(frozen=True, slots=True)
class Annotation:
    """A named moment: ``record_function`` started or ended. Microseconds on the clock of the events."""

    name: str
    stage: str
    time: int
    extra: Extra | None = None


class Stacks:
    """Stacks by number, resolved on first use and then kept."""

    __slots__ = ("_known", "_resolve")

    def __init__(self, resolve: Callable[[int], Stack] | None = None) -> None:
        self._resolve = resolve
        self._known: dict[int, Stack] = {NO_STACK: Stack()}

    def __getitem__(self, number: int) -> Stack:
        stack = self._known.get(number)
        if stack is None:
            stack = Stack() if self._resolve is None else self._resolve(number)
            self._known[number] = stack
        return stack


@dataclass(frozen=True, slots=True)
class Recording(InNotebook):
    """One device's record.

    ``truncated`` says whether older events were dropped from the ring (``None``: unknown). ``stackless`` says why a
    block may have no stack. ``first`` is the number of the first event since the recorder started, if it counts.
    ``notes`` are diagnostics of reading. ``pools`` lists the private pools (of CUDA graphs and ``MemPool``).
    """

    device: Device
    blocks: tuple[LiveBlock, ...] = ()
    events: Events = field(default_factory=Events)
    segments: tuple[Segment, ...] = ()
    pools: tuple[Pool, ...] = ()
    settings: Settings = Settings()
    annotations: tuple[Annotation, ...] = ()
    stacks: Stacks = field(default_factory=Stacks, compare=False)
    owners: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    first: int = 0
    truncated: bool | None = None
    stackless: str = "no Python stack"
    notes: tuple[str, ...] = ()
    extra: Extra | None = None

    @property
    def allocated(self) -> int:
        """Bytes allocated at the end, as the allocator counts them: without blocks that only wait for a stream."""
        return sum(block.size for block in self.blocks if not block.awaiting_free)

    @property
    def reserved(self) -> int | None:
        """Bytes of all segments; ``None`` if the device has none (the CPU)."""
        return sum(segment.size for segment in self.segments) if self.device.has_segments else None

    def flamegraph(self, path: str | Path, title: str = "") -> Path:
        """Draw what was live when the recording was taken, by stack, into a PNG or SVG file.

        Raises:
            ModuleNotFoundError: matplotlib is not installed (extra ``plot``).
            ValueError: for another ending.
        """
        from .replay import replay

        return replay(self).live_at().flamegraph(path, title)

    def pool(self, number: int) -> Pool:
        """The pool of an entry of ``events.pools``: 0 is the main pool."""
        return MAIN_POOL if number <= 0 else self.pools[number - 1]

    def __str__(self) -> str:
        text = f"{format_size(self.allocated)} in {count(len(self.blocks), 'block')} on {self.device}"
        text += f", {count(len(self.events), 'event')}"
        if self.reserved is not None:
            text += f", {format_size(self.reserved)} in {count(len(self.segments), 'segment')}"
        if self.truncated:
            text += ", older events dropped"
        return "\n".join((text, *self.notes))
