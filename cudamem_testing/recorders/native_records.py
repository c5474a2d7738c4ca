"""Records of the CPU recorder, as plain tuples that hold no tensor and no frame.

Each tuple unpacks from the C structure of the same meaning (native.py lists the formats).

PYTEST_DONT_REWRITE
"""

# Annotations are not postponed here: Python compiles the text of each field of a named tuple.
from collections.abc import Callable, Iterable
from itertools import islice
from types import CodeType
from typing import NamedTuple

_MOST_STACKS, _MOST_INSTRUCTIONS = 4096, 2**16


class Reading(NamedTuple):
    """Counters at one moment. Bytes count blocks allocated since the recorder was installed."""

    allocated: int
    """Live bytes."""
    peak: int
    """Most bytes live at once since this slot's last `read`."""
    own: int
    """As `allocated`, but frees of blocks of other owners than the current one do not lower it."""
    own_peak: int
    """The highest value of `own` since this slot's last `read`."""
    peak_event: int
    """Number of events up to and with the allocation that reached the peak: replaying them gives its live set."""
    events: int
    """Number of events so far. Grows only while events are recorded."""
    allocations: int
    """Allocations so far."""
    live_blocks: int
    allocated_total: int
    """Bytes of all allocations so far."""
    unknown_frees: int
    """Frees of blocks that were handed out while not recording; they lower nothing."""
    refusals: int
    """Allocations refused because of the limit, so far."""


class OwnerTotals(NamedTuple):
    """Live memory of one owner, and the number of its allocations so far."""

    live_bytes: int
    live_blocks: int
    allocations: int


class BlockRecord(NamedTuple):
    """One live block. `sequence` numbers allocations from 1; stack 0 is unknown, owner 0 is none."""

    pointer: int
    size: int
    sequence: int
    stack: int
    owner: int
    thread: int


class EventRecord(NamedTuple):
    """An allocation, a free (stack and owner are those of the allocation) or a refusal (pointer and sequence 0).

    `time_ns` is on the clock of `time.monotonic_ns()`; `thread` is the one that allocated or freed. `grad` is 1 for an
    allocation while that thread's grad mode was on.
    """

    pointer: int
    size: int
    sequence: int
    time_ns: int
    stack: int
    owner: int
    thread: int
    kind: int
    grad: int = 0


ALLOCATED, FREED, REFUSED = 0, 1, 2
"""`EventRecord.kind`."""


class Trace(NamedTuple):
    """Events `start` to `total`, in order; those from the requested index to `start` were overwritten."""

    start: int
    total: int
    events: list[EventRecord]


class Refusal(NamedTuple):
    """The last allocation refused because of the limit; `event` counts events as `Reading.peak_event` does."""

    number: int
    """How many there were, including this one."""
    size: int
    event: int
    allocated: int
    limit: int
    stack: int
    thread: int


class Recording(NamedTuple):
    """What is recorded besides the counters."""

    stacks: bool
    events: bool


class StackCounts(NamedTuple):
    """Distinct stacks kept, and those not kept because there were too many (their blocks have stack 0)."""

    kept: int
    overflow: int


class CodePosition(NamedTuple):
    """A recorded frame: its code object and the byte offset of the instruction."""

    code: CodeType
    position: int


class FrameRecord(NamedTuple):
    """A frame as text. Columns and end line are `None` if Python has none (3.10, or `-X no_debug_ranges`)."""

    filename: str
    line: int | None
    qualname: str
    end_line: int | None
    column: int | None
    end_column: int | None


def position_of(code: CodeType, position: int) -> FrameRecord:
    """Where an instruction comes from; costs a walk over the code's line table, so only on demand."""
    qualname = getattr(code, "co_qualname", code.co_name)  # 3.11
    positions = getattr(code, "co_positions", None)  # 3.11
    if positions is not None:
        line, end_line, column, end_column = next(islice(positions(), position // 2, None), (None,) * 4)
        return FrameRecord(code.co_filename, line, qualname, end_line, column, end_column)
    line = next((line for start, end, line in code.co_lines() if start <= position < end), None)
    return FrameRecord(code.co_filename, line, qualname, None, None, None)


class KnownFrames:
    """Frames as text, by stack number and by instruction, kept until stacks are trimmed.

    Until then the recorder holds the code objects of its stacks, so that an address stays that of one of them. Stacks
    share most of their frames, and the walk to an instruction at the end of a long function takes 50 µs.
    """

    def __init__(self) -> None:
        self._stacks: dict[int, tuple[FrameRecord, ...]] = {}
        self._instructions: dict[tuple[int, int], FrameRecord] = {}

    def of(self, stack: int, read: Callable[[int], Iterable[CodePosition]]) -> tuple[FrameRecord, ...]:
        """The frames of a stack, innermost first; ``read`` gives those of one that is not known."""
        found = self._stacks.get(stack)
        if found is None:
            found = tuple(self._frame(code, at) for code, at in read(stack))
            if len(self._stacks) >= _MOST_STACKS:
                self._stacks.clear()
            if found:
                self._stacks[stack] = found
        return found

    def _frame(self, code: CodeType, position: int) -> FrameRecord:
        key = id(code), position
        found = self._instructions.get(key)
        if found is None:
            if len(self._instructions) >= _MOST_INSTRUCTIONS:
                self._instructions.clear()
            found = self._instructions[key] = position_of(code, position)
        return found

    def clear(self) -> None:
        """Forget all, since numbers of stacks and addresses of code may be used again."""
        self._stacks.clear()
        self._instructions.clear()
