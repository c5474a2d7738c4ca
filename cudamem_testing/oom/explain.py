"""Explain why an allocation failed, from the record taken before the exception unwound anything.

Memory that was not available has five possible owners: the test itself, an earlier test, a private pool, the gaps
between blocks, another process. Each is counted; the hint names the largest of those that alone would have made room
for the request, and otherwise says that the test needs more than there is. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Stack
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.snapshots.fragmentation import Fragmentation, fragmentation
from cudamem_testing.snapshots.record import Kind, Recording
from cudamem_testing.snapshots.replay import Replay, replay
from cudamem_testing.snapshots.text import ROWS, Source, live_table

Cause = Literal["need", "earlier tests", "private pools", "fragmentation", "other processes"]
_OWNERS = 3
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_COLUMNS = (Column("what"), Column("size", "right"), Column("detail"))


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One failed allocation, in bytes.

    ``allowed`` is the limit in force. ``base`` is what was taken when ``cuda_memory.limit`` set it, and did not count
    towards it; ``None`` for other limits. ``free`` is what the driver had, ``others`` what other processes hold on
    the device; each is ``None`` where it is not known (``notes`` say why). ``left`` maps earlier owners to what they
    left; ``before`` is what was live before the test and has no known owner, or, where events of the test were
    ``dropped``, may have been allocated in these. ``pools`` tells how segments are used,
    ``None`` where the device has none (the CPU).
    """

    device: Device
    requested: int
    live: LiveSet
    where: Stack = Stack()
    allowed: int | None = None
    base: int | None = None
    free: int | None = None
    others: int | None = None
    left: tuple[tuple[str, int], ...] = ()
    before: int = 0
    dropped: bool = False
    pools: Fragmentation | None = None
    notes: tuple[str, ...] = ()

    @property
    def private_unused(self) -> int:
        """Bytes that private pools hold without using them."""
        return 0 if self.pools is None else sum(pool.free for pool in self.pools.private)

    @property
    def shortage(self) -> int | None:
        """Bytes by which the request exceeded what could still be taken; ``None`` where neither bound is known."""
        bounds = [] if self.allowed is None else [self.allowed - self._held]
        bounds += [] if self.free is None else [self.free]
        return max(0, self.requested - max(0, min(bounds))) if bounds else None

    @property
    def _held(self) -> int:
        """Bytes that count towards ``allowed``."""
        return self.live.total if self.pools is None else self.pools.reserved

    @property
    def cause(self) -> Cause:
        """What alone would have made room, the largest first; ``need`` when nothing would."""
        shortage = self.requested if self.shortage is None else self.shortage
        gaps = self.pools.main.free if self.pools is not None else 0
        left = sum(size for _, size in self.left) if self.base is None else 0
        candidates: list[tuple[int, Cause]] = [
            (gaps, "fragmentation"),
            (left, "earlier tests"),
            (self.private_unused, "private pools"),
            (self.others or 0, "other processes"),
        ]
        enough = [one for one in candidates if one[0] and one[0] >= shortage]
        return max(enough, key=lambda one: one[0])[1] if enough else "need"

    @property
    def hint(self) -> str:
        """One sentence on what to do."""
        cause, asked = self.cause, format_size(self.requested)
        if cause == "fragmentation" and self.pools is not None:
            main = self.pools.main
            return (
                f"fragmentation: {format_size(main.free)} are reserved and unused, but no range is larger than "
                f"{format_size(main.largest_free)}. Try {_EXPANDABLE}, or free the small blocks between large ones."
            )
        if cause == "earlier tests":
            owner, size = self.left[0]
            line = self._line_of(owner)
            where = f", allocated by {line}" if line else ""
            return (
                f"earlier tests left enough to make room: {owner} left {format_size(size)}{where}. Fix that leak first."
            )
        if cause == "private pools":
            return (
                f"CUDA graphs or memory pools hold {format_size(self.private_unused)} that they do not use and nobody "
                "else can. Drop graphs that are no longer replayed, or let them share a pool."
            )
        if cause == "other processes":
            return (
                f"other processes hold {format_size(self.others or 0)} on {self.device}. End them, or use another card."
            )
        table = live_table(self.live if self.base is None else self.live.fresh())
        largest = f" The largest line is {table.lines[0].line}." if table.lines else ""
        if self.base is not None and self.allowed is not None:
            room, used = format_size(self.allowed - self.base), format_size(max(0, self._held - self.base))
            return (
                f"the code needs more than its limit of {room}: {used} were taken under it, and {asked} more.{largest}"
            )
        return f"the test needs more than there is: {format_size(self.live.total)} are live, and {asked} more.{largest}"

    def _line_of(self, owner: str) -> str:
        """The line that allocated most of what an owner left; empty where it is not known."""
        sizes: Counter[str] = Counter()
        for block in self.live.blocks:
            if block.preexisting and block.owner == owner and block.stack.frames:
                sizes[block.stack.line] += block.size
        return max(sizes, key=sizes.__getitem__, default="")

    def text(self, most: int = ROWS, width: int | None = None, source: Source | None = None) -> str:
        """Header, figures, hint, and what was live by line; bounded."""
        header = f"out of memory on {self.device}: {format_size(self.requested)} requested"
        if self.where.frames:
            header += f" by {self.where.line}"
        figures = Table(_COLUMNS, tuple(self._figures())).lines(header=False, indent=3)
        live = live_table(self.live, "live when it ran out").text(most, width, source)
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join((header, *figures, f"hint: {self.hint}", live, *notes))

    def __str__(self) -> str:
        return self.text()

    def _figures(self) -> list[tuple[str, str, str]]:
        limit = ""
        if self.base is not None and self.allowed is not None:
            limit = (
                f"{format_size(self.allowed - self.base)} above the {format_size(self.base)} at the start of the limit"
            )
        rows = [("allowed", _known(self.allowed), limit), ("allocated", format_size(self.live.total), "")]
        if self.pools is not None:
            main = self.pools.main
            detail = f"largest range {format_size(main.largest_free)}" if main.free else ""
            rows.append(("reserved, not allocated", format_size(main.free), detail))
            if self.pools.private:
                held = sum(pool.reserved for pool in self.pools.private)
                detail = f"{count(len(self.pools.private), 'pool')}, {format_size(self.private_unused)} of it unused"
                rows.append(("private pools", format_size(held), detail))
            rows.append(("free on the device", _known(self.free), ""))
            rows.append(("other processes", _known(self.others), ""))
        for owner, size in self.left[:_OWNERS]:
            line = self._line_of(owner)
            rows.append((f"left by {owner}", format_size(size), f"allocated by {line}" if line else ""))
        rest = sum(size for _, size in self.left[_OWNERS:])
        if rest:
            rows.append((f"left by {len(self.left) - _OWNERS} others", format_size(rest), ""))
        if self.before:
            detail = "or allocated by it: its first events were dropped" if self.dropped else ""
            rows.append(("live before the test", format_size(self.before), detail))
        return rows


def explain(
    recording: Recording,
    requested: int | None = None,
    *,
    allowed: int | None = None,
    base: int | None = None,
    free: int | None = None,
    others: int | None = None,
    owners: Mapping[int, str] | None = None,
    running: str | None = None,
    since: int = 0,
    why_unknown: str = "what other processes hold is not known: pip install nvidia-ml-py",
) -> OutOfMemory:
    """Explain the last allocation that failed in a recording.

    ``requested`` and ``free`` default to what the recorded failure says. ``owners`` maps addresses of blocks from
    before the moment ``since`` to the tests that allocated them; what the test ``running`` owns is its own, also where
    the events of its allocation were dropped.

    Raises:
        ValueError: when neither the recording nor the caller says what was requested.
    """
    events, replayed = recording.events, replay(recording)
    failed = events.kinds.rfind(Kind.OOM)
    if requested is None:
        if failed < 0:
            raise ValueError("the recording holds no failed allocation: say how much was requested")
        requested = events.sizes[failed]
    cuda = recording.device.kind == "cuda"
    if free is None and failed >= 0 and cuda:
        free = events.addresses[failed]
    live = _owned(_live(replayed, failed, since), owners or {}, running)
    left: dict[str, int] = {}
    for block in live.blocks:
        if block.preexisting and block.owner is not None:
            left[block.owner] = left.get(block.owner, 0) + block.size
    return OutOfMemory(
        device=recording.device,
        requested=requested,
        live=live,
        where=recording.stacks[events.stacks[failed]] if failed >= 0 else Stack(),
        allowed=allowed,
        base=base,
        free=free,
        others=others,
        left=tuple(sorted(left.items(), key=lambda one: -one[1])),
        before=sum(block.size for block in live.blocks if block.preexisting and block.owner is None),
        dropped=not since and bool(recording.truncated),
        pools=fragmentation(recording) if cuda else None,
        notes=(why_unknown,) if cuda and others is None else (),
    )


def _known(size: int | None) -> str:
    return "unknown" if size is None else format_size(size)


def _live(replayed: Replay, failed: int, since: int) -> LiveSet:
    return replayed.live_at(failed if failed >= 0 else None, since=since)


def _owned(live: LiveSet, owners: Mapping[int, str], running: str | None) -> LiveSet:
    """The same blocks with their owners; those of the running test are not from before it."""

    def told(block: Block) -> Block:
        if not block.preexisting:
            return block
        if block.owner is not None and block.owner == running:
            return replace(block, preexisting=False)
        known = None if block.address is None else owners.get(block.address)
        return block if known is None else replace(block, owner=known)

    return replace(live, blocks=tuple(map(told, live.blocks)))
