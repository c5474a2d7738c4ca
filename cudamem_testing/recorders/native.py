"""The CPU recorder's C++ side as Python objects: one call each, plain tuples back.

The library is loaded once per process and never unloaded, because storages keep a pointer into it. All its state is
process-wide; `NativeRecorder` objects are only handles to it. What nests (observers of the peak, the owner, the
limit, stop codes, what is recorded) either has its own slot or returns the earlier setting to restore.

Every call keeps the GIL: each takes well under a microsecond, except `scan` and `events`, which copy. The one mutex
they take is never held while waiting for the GIL.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from cudamem_testing.recorders.build import CPU_RECORDER, RecorderUnavailable, compiled, compiled_before, load
from cudamem_testing.recorders.native_boundaries import NativeBoundaries
from cudamem_testing.recorders.native_calls import declare, room
from cudamem_testing.recorders.native_python import introduce, take_code
from cudamem_testing.recorders.native_records import (
    BlockRecord,
    CodePosition,
    EventRecord,
    FrameRecord,
    KnownFrames,
    OwnerTotals,
    Reading,
    Recording,
    Refusal,
    StackCounts,
    Trace,
)

if TYPE_CHECKING:
    from cudamem_testing.model.failing import Wanted
    from cudamem_testing.model.stacks import RawFrame
    from cudamem_testing.recorders.native_device import NativeDevice
    from cudamem_testing.recorders.native_journal import NativeJournal
    from cudamem_testing.recorders.native_trap import NativeTrap

C = TypeVar("C")

DEPTH = 64
"""How many of the innermost frames of a stack are kept."""

DEFAULT_EVENTS = 1 << 20
"""Events kept by default: 48 MiB of address space, used only as events arrive."""

_STOP_CODES = 8
_new = tuple.__new__  # three times as fast as the named tuple's own
_READING = struct.Struct("=4q7Q")
_OWNER = struct.Struct("=q2Q")
_BLOCK = struct.Struct("=3Q3I4x")
_EVENT = struct.Struct("=3Qq3I2H")
_REFUSAL = struct.Struct("=3Q2q2I")
_FRAME = struct.Struct("=Qq")
# Made once: ctypes makes a class for each length of an array, and only the garbage collector frees it.
_Reading, _Totals, _Block, _Refusal = (ctypes.c_char * one.size for one in (_READING, _OWNER, _BLOCK, _REFUSAL))
_StopCodes, _StackCounts = ctypes.c_uint64 * _STOP_CODES, ctypes.c_uint64 * 2

#: For each library by its handle: a process has one, tests load others.
_FRAMES: dict[int, KnownFrames] = {}

# Options of a reading, see `SlotFunctions.take`.
BEGINS, RECORDS, ANYWAY = 1, 2, 4
_RELEASED = "this observer of the CPU recorder was released"
_WHY_NOT = {
    -1: "the CPU allocator in place cannot free a block by its address alone, so it cannot be wrapped",
    -2: "another CPU allocator was registered over the recorder; restore the earlier one first",
    -3: "another copy of the CPU recorder is in place in this process",
}


class SlotFunctions(Generic[C]):
    """Builtin functions for a slot: every test calls them."""

    __slots__ = ("begun", "plan", "planned", "source", "take")

    def __init__(
        self,
        take: Callable[[int], C | None],
        begun: Callable[[], tuple[int, int]],
        plan: Callable[[int], None],
        planned: Callable[[], int],
        source: object,
    ) -> None:
        self.take = take
        """Reads the slot; the same object if nothing has changed. Its argument is 0, or options: `BEGINS` a test, with
        requested bytes that equal allocated ones. If another allocator is in place, or, with `RECORDS`, stacks and
        events are not recorded, it returns `None` and reads nothing; but with `ANYWAY` it reads."""
        self.begun = begun
        """Returns how many events and how many refusals there were when the test began."""
        self.plan = plan
        """Has the next reading use these options as well."""
        self.planned = planned
        """Returns the options that the next reading will use."""
        self.source = source
        """See :class:`~.base.Recorder`."""


class Slot:
    """An observer with its own peak, independent of other observers. Not thread-safe."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        number: int = library.cudamem_acquire_slot()
        if number < 0:
            raise RuntimeError("all 256 observers of the CPU recorder are in use; release those no longer needed")
        self._number = number
        self._library = library
        self._buffer = _Reading()

    def read(self) -> Reading:
        """The counters and this slot's peak since the last `read`; then resets the peak."""
        return self._reading(reset=True)

    def peek(self) -> Reading:
        """As `read`, but does not reset the peak."""
        return self._reading(reset=False)

    def counting(self, kind: type[C]) -> SlotFunctions[C]:
        """What reads as `read` does, as counters of that class."""
        return SlotFunctions(*self._library.cudamem_reader_functions(self._number, kind))

    def _reading(self, *, reset: bool) -> Reading:
        if not self._library.cudamem_read(self._number, reset, self._buffer):
            raise ValueError(_RELEASED)
        return _new(Reading, _READING.unpack(self._buffer))

    def release(self) -> None:
        """Release the slot; it can no longer be read. Doing so again does nothing."""
        if self._number >= 0:
            self._library.cudamem_release_slot(self._number)
            self._number = -1

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class NativeRecorder:
    """Handle to the process's CPU recorder."""

    def __init__(self, library: ctypes.PyDLL, no_stacks: str | None) -> None:
        self._library = library
        self._totals = _Totals()
        self._block = _Block()
        self._frames = _FRAMES.setdefault(library._handle, KnownFrames())
        self.no_stacks = no_stacks
        """Why stacks cannot be recorded on this Python (see layout.py); `None` if they can."""
        self.is_installed: Callable[[], bool] = library.cudamem_is_installed
        """Whether it is installed and counting: also false in a forked child, or under a foreign allocator."""
        self.new_owner: Callable[[], int] = library.cudamem_new_owner
        """A new owner tag for blocks. There can be 16 million; after that 0, which means no owner."""
        # Builtin functions: every test calls them.
        enter, swap, owns = library.cudamem_owner_functions()
        self.enter_new_owner: Callable[[], tuple[int, int]] = enter
        """A new owner tag, which all blocks get from now on, on every thread; and the earlier one."""
        self.swap_owner: Callable[[int], int] = swap
        """As `set_owner`, but -1 for an unknown tag."""
        self.owns: Callable[[int], int] = owns
        """Whether an owner has live memory: 1 or 0, -1 for an unknown tag."""

    @classmethod
    def load(cls, progress: Callable[[str], None] | None = None) -> NativeRecorder:
        """Compile it if necessary, load it, and pass it this Python's layout. It is not installed yet.

        A process has one, even if the cache folder has changed meanwhile (with `$HOME`, in a nested run).

        Raises:
            RecorderUnavailable: it cannot be compiled or loaded here.
        """
        if not _of_this_process.cache_info().currsize:
            compiled(progress)
        return cls(*_of_this_process())

    @classmethod
    def load_if_compiled(cls) -> NativeRecorder | None:
        """As `load`, but `None` if it would have to be compiled, or does not load."""
        if not _of_this_process.cache_info().currsize and compiled_before() is None:
            return None
        try:
            return cls.load()
        except RecorderUnavailable:
            return None

    def install(self) -> None:
        """Install it, if it is not installed; from here on blocks are counted.

        Raises:
            RecorderUnavailable: the allocator in place cannot be wrapped.
        """
        outcome = self._library.cudamem_install()
        if outcome != 1:
            raise RecorderUnavailable(_WHY_NOT[outcome])

    def uninstall(self) -> None:
        """Restore the earlier allocator, or only stop counting if another one is above; counted blocks may still be
        freed at any time, and are recorded.
        """
        self._library.cudamem_uninstall()

    def slot(self) -> Slot:
        """A new observer, whose peak starts now.

        Raises:
            RuntimeError: 256 are in use.
        """
        return Slot(self._library)

    def journal(self, device_type: int = -1, index: int = 0) -> NativeJournal | None:
        """A new journal of the CPU, or of a device by the number of its `c10::DeviceType`.

        `None` if torch has no counters for that device, or too many journals are open.
        """
        handle = int(self._library.cudamem_open_journal(device_type, index))
        if handle < 0:
            return None
        from cudamem_testing.recorders.native_journal import NativeJournal

        return NativeJournal(self._library, handle)

    def device(self, device_type: int, index: int) -> NativeDevice | None:
        """The counters of a device by the number of its `c10::DeviceType`; `None` if torch has none in C++."""
        known = self._library.cudamem_has_device(device_type, index)
        if not known:
            return None
        from cudamem_testing.recorders.native_device import NativeDevice

        return NativeDevice(self._library, device_type, index)

    def boundaries(self, sources: Sequence[object], names: Sequence[str]) -> NativeBoundaries:
        """What keeps the readings of these sources at the boundaries of tests; two names for each."""
        return NativeBoundaries(self._library, sources, names)

    def set_owner(self, owner: int) -> int:
        """Tag all blocks allocated from now on, on every thread; returns the earlier tag.

        Raises:
            ValueError: not from `new_owner`, nor 0.
        """
        earlier = self.swap_owner(owner)
        if earlier < 0:
            raise ValueError(f"no owner {owner}")
        return earlier

    def owner_totals(self, owner: int) -> OwnerTotals:
        """Live memory of an owner; constant time.

        Raises:
            ValueError: not from `new_owner`, nor 0.
        """
        if not self._library.cudamem_owner_totals(owner, self._totals):
            raise ValueError(f"no owner {owner}")
        return _new(OwnerTotals, _OWNER.unpack_from(self._totals))

    def scan(self, owner: int | None = None) -> list[BlockRecord]:
        """The live blocks of one owner, or all, by sequence. Scans the whole table: 1 ms for 100,000 blocks."""
        wanted = -1 if owner is None else owner
        most = self._library.cudamem_scan(wanted, None, 0)
        while True:
            memory, pointer = room(most * _BLOCK.size)
            count = self._library.cudamem_scan(wanted, pointer, most)
            if count <= most:
                found = memoryview(memory)[: count * _BLOCK.size]
                return sorted(map(BlockRecord._make, _BLOCK.iter_unpack(found)), key=lambda b: b.sequence)
            most = count  # other threads allocated meanwhile

    def block_at(self, address: int) -> BlockRecord | None:
        """The live block at an address; constant time."""
        found = self._library.cudamem_block_at(address, self._block)
        return BlockRecord._make(_BLOCK.unpack(self._block)) if found else None

    def addresses(self) -> tuple[int, int]:
        """Addresses of the functions behind ``block_at`` and ``owner_totals``, for native code."""
        functions = self._library.cudamem_block_at, self._library.cudamem_owner_totals
        block_at, totals = (ctypes.cast(one, ctypes.c_void_p).value or 0 for one in functions)
        return block_at, totals

    def set_recording(self, *, stacks: bool, events: bool) -> Recording:
        """Choose what is recorded besides the counters; returns the earlier choice. Events need a ring.

        Stacks stay off if they cannot be recorded.
        """
        earlier = self._library.cudamem_set_recording(stacks, events)
        return Recording(bool(earlier & 1), bool(earlier & 2))

    def swap_stop_codes(self, codes: Sequence[CodeType]) -> tuple[CodeType, ...]:
        """End stacks before the first frame that runs one of these; returns the earlier ones to restore.

        Raises:
            ValueError: more than 8.
        """
        if len(codes) > _STOP_CODES:
            raise ValueError(f"at most {_STOP_CODES} stop codes, not {len(codes)}")
        if self.no_stacks is not None:
            return ()
        array = _StopCodes(*map(id, codes))
        count = ctypes.c_uint32(len(codes))
        self._library.cudamem_swap_stop_codes(array, ctypes.byref(count))
        return tuple(take_code(pointer) for pointer in array[: count.value])

    def stack(self, stack: int) -> tuple[CodePosition, ...]:
        """The frames of a stack id, innermost first; empty for 0 and for one that was trimmed."""
        memory, pointer = room(DEPTH * _FRAME.size)
        depth = self._library.cudamem_stack(stack, pointer)
        found = memoryview(memory)[: depth * _FRAME.size]
        return tuple(CodePosition(take_code(code), at) for code, at in _FRAME.iter_unpack(found))

    def frames(self, stack: int) -> tuple[FrameRecord, ...]:
        """As `stack`, but as text: file, line, qualified name, columns. Kept until stacks are trimmed."""
        return self._frames.of(stack, self.stack)

    def raw_frames(self, stack: int) -> list[RawFrame]:
        """As `frames`, without columns."""
        return [(frame.filename, frame.line or 0, frame.qualname) for frame in self.frames(stack)]

    def stack_counts(self) -> StackCounts:
        """How many distinct stacks are kept, and how many were not because there was no room."""
        counts = _StackCounts()
        self._library.cudamem_stack_counts(counts)
        return StackCounts(*counts)

    def trim_stacks(self) -> int:
        """Drop stacks that no live block and no kept event uses, with their references to code; returns how many."""
        dropped = int(self._library.cudamem_trim_stacks())
        self._frames.clear()  # what another thread asked for until now may be of a stack that was dropped
        return dropped

    def restart_events(self, capacity: int = DEFAULT_EVENTS) -> int:
        """Discard the kept events and keep up to `capacity` from here on (0: none); returns the index they start at.

        Raises:
            MemoryError: no room for that many.
        """
        start = int(self._library.cudamem_restart_events(capacity))
        if start < 0:
            raise MemoryError(f"no memory for a ring of {capacity} events of {_EVENT.size} bytes")
        return start

    def events_capacity(self) -> int:
        """How many events are kept; 0: none."""
        return int(self._library.cudamem_events_capacity())

    def events(self, start: int = 0) -> Trace:
        """The kept events from index `start` on."""
        first, total = ctypes.c_uint64(), ctypes.c_uint64()
        ends = ctypes.byref(first), ctypes.byref(total)
        self._library.cudamem_events(start, None, 0, *ends)
        start = max(start, first.value)
        most = max(total.value - start, 0)
        memory, pointer = room(most * _EVENT.size)
        count = self._library.cudamem_events(start, pointer, most, *ends)
        start = max(start, first.value)
        found = memoryview(memory)[: count * _EVENT.size]
        return Trace(start, start + count, list(map(EventRecord._make, _EVENT.iter_unpack(found))))

    def set_limit(self, limit: int | None) -> int | None:
        """Refuse allocations that would take live bytes above `limit`, with `torch.OutOfMemoryError` at the line
        that asked; `None`: none. Returns the earlier limit to restore.

        Raises:
            ValueError: below 0.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"a memory limit cannot be {limit} bytes")
        earlier = int(self._library.cudamem_set_limit(-1 if limit is None else limit))
        return None if earlier < 0 else earlier

    def refusal(self) -> Refusal | None:
        """The last allocation that the limit refused, or `None` if none ever was."""
        buffer = _Refusal()
        self._library.cudamem_refusal(buffer)
        refusal = Refusal._make(_REFUSAL.unpack(buffer))
        return refusal if refusal.number else None

    def trap(self, wanted: Wanted) -> NativeTrap:
        """Let a wanted allocation fail, with `torch.OutOfMemoryError` at the line that asked.

        Raises:
            RuntimeError: another one is made to fail already.
            ValueError: no loaded code has the wanted line.
        """
        from cudamem_testing.recorders import native_trap

        library = self._library
        library.cudamem_set_trap.argtypes = native_trap.ARGUMENTS
        calls = library.cudamem_set_trap, library.cudamem_trapped, library.cudamem_clear_trap
        return native_trap.NativeTrap(*calls, wanted, self.raw_frames)

    def thread(self) -> int:
        """The number of the calling thread in blocks and events."""
        return int(self._library.cudamem_thread())


@cache
def _of_this_process() -> tuple[ctypes.PyDLL, str | None]:
    return introduced(load(CPU_RECORDER))


def introduced(library: ctypes.PyDLL) -> tuple[ctypes.PyDLL, str | None]:
    """A loaded library after it got this Python's layout; and why it cannot record stacks, if so."""
    declare(library)
    return library, introduce(library)
