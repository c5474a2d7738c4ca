"""Explains why an allocation failed, from the record taken before the exception unwound anything.

Missing memory has five possible owners: the test itself, an earlier test, a private pool, the gaps
between blocks, another process. Each is counted; the hint names the largest of those that alone would have made room
for the request; if none would, it says that the test needs more memory than the device has. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.facts import Blame, Left, OutOfMemory
from cudamem_testing.model.live_tables import Source, live_table
from cudamem_testing.model.stacks import Frame
from cudamem_testing.snapshots.fragmentation import Fragmentation, fragmentation
from cudamem_testing.snapshots.record import Kind, Recording
from cudamem_testing.snapshots.replay import Replay, replay

#: Earlier owners that are shown with their lines.
LINES = 3


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
    source: Source | None = None,
) -> OutOfMemory:
    """Explain the last allocation that failed in a recording.

    ``requested`` and ``free`` default to those of the recorded failure. ``owners`` maps addresses of blocks from
    before the moment ``since`` to the tests that allocated them; blocks of the test ``running`` are its own, even if
    the events of its allocation were dropped.

    Raises:
        ValueError: if neither the recording nor the caller says what was requested.
    """
    events, replayed = recording.events, replay(recording)
    failed = events.kinds.rfind(Kind.OOM)
    if requested is None:
        if failed < 0:
            raise ValueError("the recording holds no failed allocation: pass how much was requested")
        requested = events.sizes[failed]
    card = recording.device.is_card
    if free is None and failed >= 0 and card:
        free = events.addresses[failed]
    live = _owned(_live(replayed, failed, since), owners or {}, running)
    left: dict[str, int] = {}
    for block in live.blocks:
        if block.preexisting and block.owner is not None:
            left[block.owner] = left.get(block.owner, 0) + block.size
    pools = fragmentation(recording) if card else None
    held = live.total if pools is None else pools.reserved
    largest = sorted(left, key=lambda owner: -left[owner])
    lines = {owner: _line_of(owner, live.blocks) for owner in largest[:LINES]}
    earlier = tuple(Left(owner, left[owner], lines.get(owner)) for owner in largest)
    table = live_table(live, "live when it ran out", source=source)
    own = table if base is None else live_table(live.fresh())
    short = shortage(requested, held, allowed, free)
    blame = _blame(requested if short is None else short, pools, earlier if base is None else (), others)
    return OutOfMemory(
        recording.device,
        requested,
        table.cut(),
        blame,
        short,
        held,
        recording.stacks[events.stacks[failed]].where if failed >= 0 else None,
        allowed,
        base,
        free,
        others,
        earlier,
        before=sum(block.size for block in live.blocks if block.preexisting and block.owner is None),
        dropped=not since and bool(recording.truncated),
        main=None if pools is None else pools.main,
        private=() if pools is None else pools.private,
        largest=own.lines[0].frame if own.lines else None,
    )


def shortage(requested: int, held: int, allowed: int | None, free: int | None) -> int | None:
    """The bytes that a request needed above the available memory; ``None`` if no bound is known."""
    bounds = [] if allowed is None else [allowed - held]
    bounds += [] if free is None else [free]
    return max(0, requested - max(0, min(bounds))) if bounds else None


def _blame(short: int, pools: Fragmentation | None, left: Sequence[Left], others: int | None) -> Blame:
    """The largest of what alone would have made room; the test's own need if nothing would."""
    candidates = [
        (0 if pools is None else pools.main.free, Blame.FRAGMENTATION),
        (sum(one.bytes for one in left), Blame.EARLIER_TESTS),
        (0 if pools is None else sum(pool.free for pool in pools.private), Blame.PRIVATE_POOLS),
        (others or 0, Blame.OTHER_PROCESSES),
    ]
    enough = [one for one in candidates if one[0] and one[0] >= short]
    return max(enough, key=lambda one: one[0])[1] if enough else Blame.NEED


def _line_of(owner: str, blocks: Sequence[Block]) -> Frame | None:
    """The line that allocated most of what an owner left."""
    sizes: Counter[Frame] = Counter()
    for block in blocks:
        if block.preexisting and block.owner == owner and block.stack.where is not None:
            sizes[block.stack.where] += block.size
    return max(sizes, key=sizes.__getitem__, default=None)


def _live(replayed: Replay, failed: int, since: int) -> LiveSet:
    return replayed.live_at(failed if failed >= 0 else None, since=since)


def _owned(live: LiveSet, owners: Mapping[int, str], running: str | None) -> LiveSet:
    """The same blocks with their owners; blocks of the running test do not count as older."""

    def told(block: Block) -> Block:
        if not block.preexisting:
            return block
        if block.owner is not None and block.owner == running:
            return replace(block, preexisting=False)
        known = None if block.address is None else owners.get(block.address)
        return block if known is None else replace(block, owner=known)

    return replace(live, blocks=tuple(map(told, live.blocks)))
