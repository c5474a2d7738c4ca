"""What every recorder can do, and parts for those that cannot do all of it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from cudamem_testing.model.counters import Counters
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.facts import OutsideUse
    from cudamem_testing.recorders.capture import Capture, Refusal


class Owned(NamedTuple):
    """Live bytes and blocks of one owner."""

    bytes: int
    blocks: int

    def without(self, other: Owned) -> Owned:
        """What is left of it without another's part."""
        return Owned(self.bytes - other.bytes, self.blocks - other.blocks)


class Recorder(Protocol):
    """The source of truth for one device.

    ``tells_blocks`` is whether its blocks can be told apart, ``tells_owners`` whether they carry an owner.
    ``has_pools`` is whether CUDA graphs have pools of their own in it.
    ``incomplete`` is the reason why its windows may miss something, ``None`` when it sees everything.
    """

    device: Device
    tells_owners: bool
    tells_blocks: bool
    has_pools: bool

    @property
    def incomplete(self) -> str | None: ...

    def wake(self, *, limited: bool) -> None:
        """A test begins with the next boundary; a recorder that is costly stays asleep unless a limit or a window was
        written down for it.
        """
        ...

    def sleep(self) -> None:
        """The test is over, and what follows is not measured."""
        ...

    def new_owner(self) -> int:
        """A number for somebody who allocates; only where blocks carry an owner."""
        ...

    def own(self, owner: int) -> int:
        """Blocks allocated from now on, by any thread, belong to ``owner``; who they belonged to so far."""
        ...

    def owned(self, owner: int) -> Owned:
        """What is still live of an owner."""
        ...

    def moment(self) -> int | None:
        """The number of events so far; ``None`` where the record does not tell threads."""
        ...

    def freed_elsewhere(self, since: int) -> Collection[int]:
        """The orders of the blocks that other threads than the calling one have freed since a moment, as far as events
        were recorded.
        """
        ...

    def finish(self) -> None:
        """Wait until the device has done its work, so that blocks that wait for a stream are free."""
        ...

    def workspace_sizes(self) -> frozenset[int]:
        """Bytes that workspaces of libraries may have on the device; other blocks may have them too."""
        ...

    def release(self) -> None:
        """Have libraries give back the workspaces that they keep on the device."""
        ...

    def retake(self) -> None:
        """Have libraries take their workspaces again, so that the next test does not."""
        ...

    def capture(self) -> Capture | None:
        """What is live now and how that came, for evidence; ``None`` where nothing of it is kept."""
        ...

    def capture_of(self, owner: int) -> Capture | None:
        """What is live now of an owner; ``None`` where nothing of it is kept."""
        ...

    def refusal(self) -> Refusal | None:
        """The last allocation since the recorder woke up that failed for want of memory."""
        ...

    def outside(self) -> OutsideUse | None:
        """What the process takes of the device beside the allocator; ``None`` where there is no such thing."""
        ...

    def boundary(self) -> Counters | None:
        """Read the counters, with the peaks since the last boundary, and start new peaks; ``None`` while asleep."""
        ...

    def limit(self, size: int) -> Callable[[], None]:
        """Let an allocation that would take more than ``size`` bytes above now fail with an out-of-memory error.

        Of several limits the lowest holds. The answer lifts this one, in whatever order they end.
        """
        ...

    def close(self) -> None:
        """Leave the process as it was found."""
        ...


def untold(recorder: Recorder) -> str:
    """Why blocks of a device are not known, for people."""
    why = getattr(recorder, "why_untold", None) or recorder.incomplete
    reason = "" if why is None else f": {why}"
    return f"blocks of {recorder.device} cannot be told apart here{reason}"


class WithoutOwners:
    """Blocks carry neither an owner nor a thread; the methods for owners are never called."""

    tells_owners = False

    def new_owner(self) -> int:
        """No number."""
        return 0

    def own(self, owner: int) -> int:
        """Nothing changes."""
        return owner

    def owned(self, owner: int) -> Owned:
        """Nothing is known."""
        return Owned(0, 0)

    def capture_of(self, owner: int) -> None:
        """Nothing is known."""

    def moment(self) -> None:
        """Nothing is known."""

    def freed_elsewhere(self, since: int) -> Collection[int]:
        """Nothing is known."""
        return ()


class WithoutEvidence:
    """Blocks cannot be told apart."""

    tells_blocks = False

    def capture(self) -> None:
        """Nothing is kept."""

    def refusal(self) -> None:
        """None is noted."""


class WithoutWorkspaces:
    """Libraries keep no workspaces in this allocator, graphs no pools, and nobody takes memory beside it."""

    has_pools = False

    def workspace_sizes(self) -> frozenset[int]:
        """None."""
        return frozenset()

    def release(self) -> None:
        """Nothing to give back."""

    def retake(self) -> None:
        """Nothing to take."""

    def outside(self) -> None:
        """Nothing."""
