"""Measures the CPU with the project's own recorder, which sees every thread. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import CodeType
from typing import TYPE_CHECKING

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.base import Owned, Taken, WithoutWorkspaces
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.recorders.capture import OFF, CpuCapture, Refusal
from cudamem_testing.recorders.native import ANYWAY, BEGINS, RECORDS, NativeRecorder
from cudamem_testing.recorders.native_records import FREED, Recording

if TYPE_CHECKING:
    from cudamem_testing.model.failing import Wanted
    from cudamem_testing.model.stacks import RawFrame
    from cudamem_testing.recorders.base import Trap

_new = tuple.__new__  # three times as fast as the named tuple's own
EVENTS = 1 << 18
MOST_STACKS = 20_000
TRIM_EVERY = 64
DISPLACED = "another allocator replaced the recorder, and allocations since then are not seen"
FORKED = "a process that was forked from the measured one"


class CpuRecorder(WithoutWorkspaces):
    """Memory that CPU tensors take from torch's allocator, to the byte.

    With ``record`` it records the Python stack of every block, up to the frames that run one of the ``harness`` code
    objects, and the last events. Not seen are tensors over foreign memory (``torch.from_numpy``, shared memory,
    memory-mapped files). Requested bytes equal allocated bytes when a test begins; from then on frees of blocks that
    others have allocated, such as garbage of earlier tests, do not lower them. If another allocator replaces it,
    because a library registers one, windows say so, and the recorder is installed again for the next test if possible.

    :meth:`start` installs it, and :meth:`close` removes it, even after a partial start.

    Raises:
        RecorderUnavailable: if the recorder cannot be built here.
    """

    tells_owners = True
    tells_blocks = True
    tells_storages = False
    keeps_events = False

    def __init__(
        self, say: Callable[[str], None] | None = None, *, record: bool = False, harness: Sequence[CodeType] = ()
    ) -> None:
        self.device = Device("cpu")
        self.incomplete: str | None = None
        self._process = os.getpid()
        self._native = NativeRecorder.load(say)
        # Builtin functions: every test calls them.
        self.own_new: Callable[[], tuple[int, int]] = self._native.enter_new_owner
        """Makes a new owner, whom every new block records; there are 16 million. Returns its number and the earlier."""
        self.own: Callable[[int], int] = self._native.swap_owner
        """Sets the current owner."""
        self.owns: Callable[[int], int] = self._native.owns
        """Whether an owner has live memory."""
        self._limits: list[int] = []
        self._before: int | None = None
        self._bases: dict[int, int] = {}
        self._record = record
        self._harness = harness
        self._wakes = self._resumed = 0
        self._records = False  # what we have chosen: others may have chosen since
        self._outer = Recording(stacks=False, events=False)
        self._leaving = ExitStack()

    @property
    def source(self) -> object | None:
        """The slot, unless another allocator has replaced the recorder."""
        return self._source if self.incomplete is None else None

    def start(self) -> CpuRecorder:
        """Install it. The undo of a step is registered before the step: an interrupt may come between any two.

        Raises:
            RecorderUnavailable: if it cannot be installed here.
        """
        native, leaving = self._native, self._leaving
        if not native.is_installed():
            leaving.callback(native.uninstall)
            try:
                native.install()
            except RecorderUnavailable:  # it has changed nothing
                leaving.pop_all()
                raise
        self._slot = native.slot()
        leaving.callback(self._slot.release)
        functions = self._slot.counting(Counters)
        self._take, self._begun, self._source = functions.take, functions.begun, functions.source
        self._plan, self._planned = functions.plan, functions.planned
        self._take(BEGINS | ANYWAY)
        if self._record:
            # Events that are already kept belong to an outer session, awake or asleep: keep them.
            if not native.events_capacity():
                leaving.callback(native.trim_stacks)
                leaving.callback(native.restart_events, 0)
                native.restart_events(EVENTS)
            self._outer = native.set_recording(stacks=False, events=False)
            leaving.callback(self.sleep)
            leaving.callback(native.swap_stop_codes, native.swap_stop_codes(()))
            native.swap_stop_codes(self._harness)
            self.sleep()
        return self

    def wake(self, *, limited: bool) -> None:
        """Record stacks and events from here on; the next read begins the test."""
        self._plan(BEGINS | RECORDS if self._record else BEGINS)
        if self._record:
            if not self._records:
                self._native.set_recording(stacks=True, events=True)
                self._records = True
            self._wakes += 1
            if self._wakes % TRIM_EVERY == 0 and self._native.stack_counts().kept > MOST_STACKS:
                self._native.trim_stacks()
            if self._bases:
                self._bases.clear()

    def _return(self) -> None:
        """Install the recorder again."""
        try:
            self._native.install()
        except RecorderUnavailable as error:
            self.incomplete = f"no longer seen by the recorder: {error}"
        else:
            self.incomplete = None
            self._process = os.getpid()

    def sleep(self) -> None:
        """Only count, or record what an outer session records."""
        if self._record:
            self._native.set_recording(stacks=self._outer.stacks, events=self._outer.events)
            self._records = False

    def pause(self) -> Callable[[], None]:
        """Only count for a while. Events before that are as if dropped: what came after them is not known."""
        if not self._record:
            return self.sleep
        before = self._native.set_recording(stacks=False, events=False)

        def resume() -> None:
            self._native.set_recording(stacks=before.stacks, events=before.events)
            self._resumed = self._slot.peek().events

        return resume

    def owned(self, owner: int) -> Owned:
        """Exact, and in constant time."""
        return _new(Owned, self._native.owner_totals(owner)[:2])

    def moment(self) -> int:
        """Every event records the thread that allocated or freed."""
        return self._slot.peek().events

    def freed_elsewhere(self, since: int) -> frozenset[int]:
        """Read only from the events since the moment."""
        own = self._native.thread()
        events = self._native.events(since).events
        return frozenset(one.sequence for one in events if one.kind == FREED and one.thread != own)

    def finish(self) -> None:
        """CPU work is finished when the call returns."""

    def capture(self) -> CpuCapture:
        """Live blocks and, if recorded, the events since the test began."""
        if not self._record:
            return CpuCapture(self.device, self._native.scan(), (), self.frames, missing=OFF)
        with CollectorPaused():  # what it frees between the two readings would be in neither
            first, _ = self._begun()
            trace = self._native.events(max(first, self._resumed))
            blocks = self._native.scan()
        return CpuCapture(
            self.device,
            blocks,
            trace.events,
            self.frames,
            first=trace.start,
            truncated=trace.start > first,
            missing=self._native.no_stacks,
        )

    def capture_of(self, owner: int) -> CpuCapture:
        """The live blocks of one owner; with events only if a block has no stack, to show what came before it."""
        with CollectorPaused():
            blocks = self._native.scan(owner)
            if not all(block.stack for block in blocks):
                return self.capture()._replace(blocks=blocks)
        return CpuCapture(self.device, blocks, (), self.frames)

    def allocation(self, address: int) -> tuple[int, int] | None:
        """The owner of the live block at an address and the number of its stack, in constant time."""
        block = self._native.block_at(address)
        return None if block is None else (block.owner, block.stack)

    def addresses(self) -> tuple[int, int]:
        """The addresses of the native functions that find the live block at an address, and an owner's totals."""
        return self._native.addresses()

    def frames(self, stack: int) -> list[RawFrame]:
        """The frames of a stack number, innermost first."""
        return self._native.raw_frames(stack)

    def refusal(self) -> Refusal | None:
        """The last allocation that a hard limit refused."""
        refused = self._native.refusal()
        capture = self.capture()
        _, before = self._begun()
        if refused is None or refused.number <= before or not self._record:
            return None
        return Refusal(self.device, refused.size, refused.limit, None, capture, self._bases.get(refused.limit))

    def read_and_reset_peaks(self) -> Counters:
        """One call; the peaks of other observers in this process are not affected.

        If nothing was allocated or freed since the last one, it is the same object.
        """
        if self.incomplete is None:
            counters = self._take(0)
            if counters is not None:
                return counters
        return self._begin() if self._planned() else self._displaced()

    def _begin(self) -> Counters:
        """Begin a test after others have replaced the recorder, or have chosen what it records."""
        if self._planned() & RECORDS:
            self._native.set_recording(stacks=True, events=True)
        if self.incomplete is not None or not self._native.is_installed():
            self._return()
        return self._take(BEGINS | ANYWAY) or Counters()

    def _displaced(self) -> Counters:
        """Read although not all is seen, and say why not; a forked process sees nothing."""
        if self.incomplete is None:
            self.incomplete = DISPLACED if os.getpid() == self._process else FORKED
        return (None if self.incomplete is FORKED else self._take(ANYWAY)) or Counters()

    def live(self) -> CpuCapture:
        """All live blocks."""
        return CpuCapture(self.device, self._native.scan(), (), self.frames)

    def operators(self) -> Trap:
        """Counted by a dispatch mode."""
        from cudamem_testing.recorders.dispatch_trap import counting

        return counting(self._taken)

    def _taken(self) -> Taken:
        reading = self._slot.peek()
        return Taken(reading.allocations, reading.allocated_total)

    def trap(self, wanted: Wanted, after: Trap | None = None) -> Trap:
        """The allocator itself fails, inside the operator and on any thread."""
        self._take_place("an allocation on cpu cannot be made to fail")
        return self._native.trap(wanted)

    def _take_place(self, otherwise: str) -> None:
        if not self._native.is_installed():
            self._return()
        if self.incomplete is not None:
            raise RuntimeError(f"{otherwise}: {self.incomplete}")

    def limit(self, size: int) -> Callable[[], None]:
        """An exact limit for allocations on any thread.

        Raises:
            RuntimeError: if another allocator has replaced the recorder, and it cannot be installed again.
        """
        self._take_place("a hard limit on cpu cannot hold")
        taken = self._slot.peek().allocated
        wanted = taken + size
        self._bases[wanted] = taken
        if not self._limits:
            self._before = self._native.set_limit(wanted)
        self._limits.append(wanted)
        self._hold()

        def lift() -> None:
            self._limits.remove(wanted)
            self._hold()

        return lift

    def _hold(self) -> None:
        """Apply the lowest of all limits, including one set by other code."""
        known = (*self._limits, *(() if self._before is None else (self._before,)))
        self._native.set_limit(min(known, default=None))

    def close(self) -> None:
        """Remove the recorder, unless other code installed it; closing again does nothing."""
        self._leaving.close()
