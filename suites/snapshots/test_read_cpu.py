"""Recordings from rows of the CPU recorder."""

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Locator
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.snapshots.record import NO_STACK, Kind, SnapshotError
from cudamem_testing.snapshots.replay import DROPPED, UNSEEN, replay

STACKS = Locator("/p")
#          address size sequence ns      stack owner thread kind
EVENTS = [
    (0x100, 64, 11, 5_000, 1, 2, 1, 0),
    (0x200, 100, 12, 6_000, 2, 2, 2, 0),
    (0x300, 8, 3, 7_000, 3, 1, 9, 1),  # from before: the free knows sequence, stack and owner of the allocation
    (0x100, 64, 11, 8_000, 1, 2, 7, 1),
    (0, 10**6, 0, 9_000, 2, 2, 1, 2),
    (0x100, 32, 13, 9_500, 0, 0, 1, 0),
]
BLOCKS = [(0x50, 7, 1, 3, 1, 4), (0x200, 100, 12, 2, 2, 2), (0x100, 32, 13, 0, 0, 1)]


def recording(**more):
    return read_cpu(
        BLOCKS,
        EVENTS,
        lambda number: STACKS.stack([("/p/a.py", number, "f")]),
        owners={1: "test_1", 2: "test_2"},
        **more,
    )


def test_blocks_with_dropped_allocations_are_known_by_number():
    """Number 11 was allocated after the window began with 3 allocations; without that number all count as older."""
    events = [EVENTS[2], EVENTS[3], EVENTS[5]]
    replayed = replay(read_cpu(BLOCKS, events, lambda number: STACKS.stack([("/p/a.py", number, "f")]), truncated=True))
    for allocations, new, note in (
        (3, {11, 12}, UNSEEN),
        (11, {12}, UNSEEN),
        (12, set(), UNSEEN),
        (None, set(), DROPPED),
    ):
        live = replayed.peak(allocations=allocations).live
        assert {block.order for block in live if not block.preexisting} == new
        assert {block.order: block.stack.line for block in live} == {
            order: f"a.py:{line} in f" for order, line in ((1, 3), (3, 3), (11, 1), (12, 2))
        }
        assert live.notes == (note,)


def test_rows_become_a_recording():
    record = recording(first=1000)
    assert record.device == Device("cpu")
    assert record.reserved is None
    assert record.allocated == 139
    assert [Kind(kind).name for kind in record.events.kinds] == (
        ["ALLOC", "ALLOC", "FREE_REQUESTED", "FREE_REQUESTED", "OOM", "ALLOC"]
    )
    assert [*record.events.times] == [5, 6, 7, 8, 9, 9]
    assert [*record.events.stacks] == [1, 2, 3, 1, 2, NO_STACK]
    assert str(record) == "139 B in 3 blocks on cpu, 6 events"


def test_the_replay_knows_owners_threads_order_and_older_blocks():
    replayed = replay(recording())
    assert [*replayed.totals] == [15, 79, 179, 171, 107, 107, 139]
    peak = replayed.peak()
    assert (peak.moment, peak.total) == (2, 179)
    assert [(b.size, b.order, b.owner, b.thread, b.preexisting, b.stack.line) for b in peak.live.blocks] == [
        (8, 3, "test_1", None, True, "a.py:3 in f"),
        (7, 1, "test_1", 4, True, "a.py:3 in f"),
        (64, 11, "test_2", 1, False, "a.py:1 in f"),
        (100, 12, "test_2", 2, False, "a.py:2 in f"),
    ]
    last = replayed.live_at().blocks[-1]
    assert (last.owner, last.stack.line) == (None, "(no Python stack)")
    assert replayed.live_at().stackless == "no Python stack: the recorder kept none when it was allocated"
    assert [group.key for group in peak.live.group_by(lambda block: block.owner)] == ["test_2", "test_1"]


def test_requested_and_active_are_what_was_allocated():
    for counter in ("active", "requested"):
        replayed = replay(recording(), counter)
        assert [*replayed.totals] == [15, 79, 179, 171, 107, 107, 139]
        assert replayed.lives.notes == ()


def test_without_events_the_end_is_known():
    live = replay(read_cpu(BLOCKS)).live_at()
    assert (live.total, [block.preexisting for block in live]) == (139, [True, True, True])


@pytest.mark.parametrize(
    ("blocks", "events"),
    [
        ([], [(1, 2, 3)]),
        ([], [(1, 1, 1, 1, 1, 1, 1, 3)]),
        ([], [("a", 1, 1, 1, 1, 1, 1, 0)]),
        ([], [(2**70, 1, 1, 1, 1, 1, 1, 0)]),
        ([(1, 2)], []),
        ([], [(1, 1, 1, 1, 1, 1, 1, 0), (1,)]),
    ],
)
def test_other_rows_are_refused(blocks, events):
    with pytest.raises(SnapshotError, match="rows of the CPU recorder are not as expected"):
        read_cpu(blocks, events)
