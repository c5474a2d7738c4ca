"""The interface of recorders, and mixins for those that lack some of it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from cudamem_testing.model.counters import Counters
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.failing import Trapped, Wanted
    from cudamem_testing.model.outside import OutsideUse
    from cudamem_testing.model.stacks import RawFrame
    from cudamem_testing.recorders.capture import Capture, Refusal


class Owned(NamedTuple):
    """Live bytes and blocks of one owner."""

    bytes: int
    blocks: int

    def without(self, other: Owned) -> Owned:
        """Bytes and blocks without those of another part."""
        return Owned(self.bytes - other.bytes, self.blocks - other.blocks)


NOTHING = Owned(0, 0)


class Recorder(Protocol):
    """The source of truth for one device.

    ``tells_blocks`` is whether it lists single blocks, ``tells_owners`` whether blocks record an owner.
    ``tells_storages`` is whether its memory is that of tensors of this process, where it lists no blocks.
    ``keeps_events`` is whether its record has the events of the test so far, where blocks record no owner.
    ``has_pools`` is whether CUDA graphs have private pools in it.
    ``incomplete`` is the reason why its windows may miss something, ``None`` if it sees everything.
    ``source`` is what native code reads in place of ``read_and_reset_peaks`` (source.h); ``None`` if the next test has
    to be read in Python.
    """

    device: Device
    tells_owners: bool
    tells_blocks: bool
    tells_storages: bool
    has_pools: bool

    @property
    def keeps_events(self) -> bool: ...

    @property
    def incomplete(self) -> str | None: ...

    @property
    def source(self) -> object | None: ...

    def wake(self, *, limited: bool) -> None:
        """The next boundary begins a test; an expensive recorder stays asleep unless the test has a limit or a
        window.
        """
        ...

    def sleep(self) -> None:
        """End of a test; what follows is not measured."""
        ...

    def pause(self) -> Callable[[], None]:
        """Record no stacks and no events until the returned function is called; numbers are counted as always."""
        ...

    def own_new(self) -> tuple[int, int]:
        """Make a new owner that of blocks allocated from now on; returns its number and the previous owner's.

        Only if blocks record an owner.
        """
        ...

    def own(self, owner: int) -> int:
        """Make ``owner`` the owner of blocks allocated from now on, by any thread; returns the previous owner."""
        ...

    def owns(self, owner: int) -> int:
        """Whether an owner has live memory: 0 if not."""
        ...

    def owned(self, owner: int) -> Owned:
        """Live memory of an owner."""
        ...

    def moment(self) -> int | None:
        """The number of events so far; ``None`` if events do not record threads."""
        ...

    def freed_elsewhere(self, since: int) -> Collection[int]:
        """The orders of the blocks that other threads have freed since a moment, as far as events
        were recorded.
        """
        ...

    def finish(self) -> None:
        """Wait until the device has finished, so that blocks that wait for a stream are free."""
        ...

    def workspace_sizes(self) -> frozenset[int]:
        """Possible sizes of library workspaces on the device, in bytes; other blocks may have the same sizes."""
        ...

    def release(self) -> None:
        """Release the workspaces that libraries keep on the device."""
        ...

    def retake(self) -> None:
        """Let libraries allocate their workspaces again, so that the next test does not."""
        ...

    def capture(self) -> Capture | None:
        """Live blocks and events, for evidence; ``None`` if nothing is recorded."""
        ...

    def capture_of(self, owner: int) -> Capture | None:
        """Live blocks of an owner; ``None`` if nothing is recorded."""
        ...

    def refusal(self) -> Refusal | None:
        """The last allocation since the recorder woke up that ran out of memory."""
        ...

    def outside(self) -> OutsideUse | None:
        """Memory that the process uses outside the allocator; ``None`` if the device has no such memory."""
        ...

    def read_and_reset_peaks(self) -> Counters | None:
        """Read the counters, with the peaks since the last boundary, and reset the peaks; ``None`` while asleep."""
        ...

    def limit(self, size: int) -> Callable[[], None]:
        """Let an allocation that would take more than ``size`` bytes above now fail with an out-of-memory error.

        Of several limits the lowest holds. Returns a function that lifts this one, in any order.
        """
        ...

    def live(self) -> Capture | None:
        """Live blocks without events; ``None`` if nothing is recorded."""
        ...

    def operators(self) -> Trap:
        """Count allocations by operator, on this thread, until it is lifted; none is made to fail."""
        ...

    def trap(self, wanted: Wanted, after: Trap | None = None) -> Trap:
        """Let a wanted allocation fail with ``torch.OutOfMemoryError``, until the trap is lifted.

        ``after`` is a trap without conditions that met a run of the same program.

        Raises:
            RuntimeError: if that is not possible now.
            ValueError: if no loaded code has the wanted line.
        """
        ...

    def close(self) -> None:
        """Restore the process to its earlier state."""
        ...


class Taken(NamedTuple):
    """How many allocations there were on a device so far, and their bytes."""

    number: int
    bytes: int


class AllocatingCall(NamedTuple):
    """An operator that allocated: its name, the bytes that it took, and the frames that called it.

    ``made`` is how many allocations it made.
    """

    operator: str
    size: int
    frames: Sequence[RawFrame]
    made: int


class Trap(Protocol):
    """Makes an allocation fail.

    ``calls`` are the operators that allocated, where each counts as one allocation; ``None`` where allocations are
    counted themselves.
    """

    @property
    def calls(self) -> Sequence[AllocatingCall] | None: ...

    def look(self) -> Trapped:
        """What it has met so far."""
        ...

    def frames(self) -> Sequence[RawFrame]:
        """The frames of the last allocation that failed, innermost first; empty if unknown."""
        ...

    def lift(self) -> None:
        """Remove it; what it met can still be read."""
        ...


def untold(recorder: Recorder) -> str:
    """The message why the blocks of a device are unknown."""
    why = getattr(recorder, "why_untold", None) or recorder.incomplete
    reason = "" if why is None else f": {why}"
    return f"{recorder.device} records no single blocks{reason}"


def _nothing() -> None:
    """There is nothing to resume."""


class WithoutOwners:
    """For blocks without owner and thread; the methods for owners are never called."""

    tells_owners = False
    tells_storages = False

    @property
    def keeps_events(self) -> bool:
        """None are recorded."""
        return False

    def own_new(self) -> tuple[int, int]:
        """No number."""
        return 0, 0

    def own(self, owner: int) -> int:
        """Nothing changes."""
        return owner

    def owns(self, owner: int) -> int:
        """Nothing is known."""
        return 0

    def owned(self, owner: int) -> Owned:
        """Nothing is known."""
        return NOTHING

    def capture_of(self, owner: int) -> None:
        """Nothing is known."""

    def moment(self) -> None:
        """Nothing is known."""

    def freed_elsewhere(self, since: int) -> Collection[int]:
        """Nothing is known."""
        return ()


class WithoutEvidence:
    """For recorders that do not list single blocks."""

    tells_blocks = False

    @property
    def source(self) -> object | None:
        """It is read in Python."""
        return None

    def pause(self) -> Callable[[], None]:
        """Nothing is recorded."""
        return _nothing

    def capture(self) -> None:
        """Nothing is kept."""

    def live(self) -> None:
        """Nothing is kept."""

    def refusal(self) -> None:
        """None is recorded."""

    def operators(self) -> Trap:
        """Not possible.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("allocations cannot be counted by operator here")

    def trap(self, wanted: Wanted, after: Trap | None = None) -> Trap:
        """Not possible.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("allocations cannot be made to fail here: single blocks are not recorded")


class WithoutWorkspaces:
    """For allocators without library workspaces, graph pools, or memory outside them."""

    has_pools = False

    def workspace_sizes(self) -> frozenset[int]:
        """None."""
        return frozenset()

    def release(self) -> None:
        """Nothing to release."""

    def retake(self) -> None:
        """Nothing to allocate."""

    def outside(self) -> None:
        """Nothing."""
