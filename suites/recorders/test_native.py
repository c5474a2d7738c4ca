"""The CPU recorder's counters, observers, owners, limit and events."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from threading import Thread

import pytest
import torch

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.counters import Counters
from cudamem_testing.recorders.native import ANYWAY, BEGINS, DEFAULT_EVENTS, RECORDS, NativeRecorder, Slot
from cudamem_testing.recorders.native_records import ALLOCATED, FREED, REFUSED, OwnerTotals, Recording
from suites.recorders.in_place import in_place


def block(size: int) -> torch.Tensor:
    """A tensor of exactly `size` bytes."""
    return torch.empty(size, dtype=torch.uint8)


def some(counters: Counters | None) -> Counters:
    """Counters that were read."""
    assert counters is not None
    return counters


def test_counts_live_peak_and_allocations_to_the_byte(native: NativeRecorder) -> None:
    with native.slot() as slot:
        start = slot.read()
        kept = block(1000)
        passing = block(5000)
        del passing
        second = block(24)
        seen = slot.peek()
        assert seen.allocated - start.allocated == 1024
        assert seen.peak - start.allocated == 6000
        assert seen.allocations - start.allocations == 3
        assert seen.live_blocks - start.live_blocks == 2
        assert seen.allocated_total - start.allocated_total == 6024
        assert slot.peek() == seen
        assert slot.read() == seen
        after = slot.read()
        assert after.peak == seen.allocated
        del kept, second
        end = slot.read()
        assert end.allocated == start.allocated
        assert end.peak == seen.allocated
        assert end.live_blocks == start.live_blocks


def test_counters_of_a_slot(native: NativeRecorder) -> None:
    with native.slot() as slot, CollectorPaused():
        functions = slot.counting(Counters)
        take, begun = functions.take, functions.begun
        reading = slot.read()
        before = some(take(BEGINS))
        assert begun() == (reading.events, reading.refusals)
        assert before == Counters(
            allocated=reading.allocated,
            allocated_peak=reading.allocated,
            requested=reading.allocated,
            requested_peak=reading.allocated,
            allocations=reading.allocations,
            retries=0,
            blocks=reading.live_blocks,
        )
        assert (type(before), take(0) is before, take(BEGINS) is before) == (Counters, True, True)
        passing = block(5000)
        kept = block(1000)
        del passing
        after = some(take(0))
        assert after == before._replace(
            allocated=reading.allocated + 1000,
            allocated_peak=reading.allocated + 6000,
            requested=reading.allocated + 1000,
            requested_peak=reading.allocated + 6000,
            allocations=reading.allocations + 2,
            blocks=reading.live_blocks + 1,
        )
        assert take(RECORDS) is None, "nothing is recorded"
        assert take(RECORDS | ANYWAY) == after._replace(
            allocated_peak=after.allocated, requested_peak=after.requested
        ), "what was not read has reset no peak"
        del kept
    with pytest.raises(ValueError, match="this observer of the CPU recorder was released"):
        take(0)


def test_requested_bytes_leave_out_what_others_free(native: NativeRecorder) -> None:
    others = block(3000)
    with native.slot() as slot, CollectorPaused():
        take = slot.counting(Counters).take
        _, nobody = native.enter_new_owner()
        begun = some(take(BEGINS))
        del others
        freed = some(take(0))
        again = some(take(BEGINS))
        native.set_owner(nobody)
        level = begun.allocated
        assert (begun.requested, freed.requested, freed.allocated) == (level, level, level - 3000)
        assert (again.requested, again.allocated) == (level - 3000, level - 3000)


def test_a_finalizer_may_read_during_a_reading(native: NativeRecorder) -> None:
    """Making counters may collect garbage, on Python up to 3.11; both readings have what was read for them."""

    class Reads:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            inner.append(some(take(0)))

    inner: list[Counters] = []
    threshold = gc.get_threshold()
    with native.slot() as slot:
        take = slot.counting(Counters).take
        level = some(take(BEGINS)).allocated or 0
        try:
            with CollectorPaused():
                Reads()
                passing = block(5000)
                del passing
                gc.set_threshold(1, *threshold[1:])
            outer = some(take(0))
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        assert [one.allocated_peak for one in inner] == [level]
        assert outer.allocated_peak == level + 5000
        assert take(0) == inner[0]


def test_counters_are_freed_with_their_functions(native: NativeRecorder) -> None:
    with native.slot() as slot:
        before = sys.getrefcount(Counters)
        functions = slot.counting(Counters)
        functions.take(0)
        del functions
        assert sys.getrefcount(Counters) == before


def test_empty_tensors_have_no_block(native: NativeRecorder) -> None:
    with native.slot() as slot:
        start = slot.read()
        empty = block(0)
        assert slot.read() == start
        empty.resize_(10)
        assert slot.read().allocated - start.allocated == 10


def test_memory_from_elsewhere_is_not_counted(native: NativeRecorder) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.ones(1000)
    with native.slot() as slot:
        start = slot.read()
        view = torch.from_numpy(array)
        assert slot.read() == start
        del view
        shared = block(4096)
        shared.share_memory_()  # moves to a file mapping and frees the block
        end = slot.read()
        assert (end.allocated, end.peak) == (start.allocated, start.allocated + 4096)


def test_an_observer_takes_no_peak_from_another(native: NativeRecorder) -> None:
    with native.slot() as outer:
        start = outer.read().allocated
        first = block(3000)
        del first
        with native.slot() as inner:
            assert inner.peek().peak == start
            second = block(1000)
            del second
            assert inner.read().peak == start + 1000
            assert inner.read().peak == start
        third = block(2000)
        del third
        assert outer.peek().peak == start + 3000
        assert outer.read().peak == start + 3000
        assert outer.read().peak == start


def test_observers_are_limited_and_end(native: NativeRecorder) -> None:
    slots: list[Slot] = []
    with pytest.raises(RuntimeError) as raised:
        slots.extend(native.slot() for _ in range(257))
    assert str(raised.value) == ("all 256 observers of the CPU recorder are in use; release those no longer needed")
    for slot in slots:
        slot.release()
    slots[0].release()
    with native.slot() as again:
        again.read()
    with pytest.raises(ValueError, match="this observer of the CPU recorder was released"):
        again.read()


def test_a_released_observer_takes_nothing_from_the_next_one(native: NativeRecorder) -> None:
    with native.slot() as released:
        take = released.counting(Counters).take
        level = some(take(BEGINS)).allocated or 0
    with native.slot() as slot, CollectorPaused():
        slot.read()
        passing = block(4000)
        del passing
        for _ in range(2):
            with pytest.raises(ValueError, match="this observer of the CPU recorder was released"):
                take(BEGINS | ANYWAY)
        assert slot.read().peak == level + 4000


def test_owners_know_what_is_live_of_theirs(native: NativeRecorder) -> None:
    one, two = native.new_owner(), native.new_owner()
    assert native.set_owner(one) == 0
    kept, gone = block(100), block(200)
    assert native.set_owner(two) == one
    other = block(7)
    assert native.set_owner(0) == two
    unowned = block(9)
    del gone
    assert native.owner_totals(one) == OwnerTotals(100, 1, 2)
    assert native.owner_totals(two) == OwnerTotals(7, 1, 1)
    (found,) = native.scan(one)
    assert (found.pointer, found.size, found.owner, found.stack) == (kept.data_ptr(), 100, one, 0)
    assert found.thread == native.thread()
    everything = native.scan()
    assert {b.pointer for b in everything} >= {t.data_ptr() for t in (kept, other, unowned)}
    assert [b.sequence for b in everything] == sorted(b.sequence for b in everything)
    Thread(target=kept.untyped_storage().resize_, args=(0,)).run()
    assert native.owner_totals(one) == OwnerTotals(0, 0, 2)
    assert native.scan(one) == []
    assert [native.owns(owner) for owner in (one, two)] == [0, 1]
    del other
    assert native.owns(two) == 0


def test_a_new_owner_owns_at_once(native: NativeRecorder) -> None:
    first, before = native.enter_new_owner()
    kept = block(10)
    assert (before, native.enter_new_owner()) == (0, (first + 1, first))
    other = block(20)
    assert (native.owner_totals(first), native.owner_totals(first + 1)) == (
        OwnerTotals(kept.nbytes, 1, 1),
        OwnerTotals(other.nbytes, 1, 1),
    )
    assert native.set_owner(0) == first + 1


def test_unknown_owners_are_refused(native: NativeRecorder) -> None:
    unknown = native.new_owner() + 1
    with pytest.raises(ValueError, match=f"no owner {unknown}"):
        native.set_owner(unknown)
    with pytest.raises(ValueError, match=f"no owner {unknown}"):
        native.owner_totals(unknown)
    assert (native.owns(unknown), native.swap_owner(unknown)) == (-1, -1)
    assert native.scan(unknown) == []


def test_owners_beyond_one_chunk_keep_their_totals(native: NativeRecorder) -> None:
    first = native.new_owner()
    native.set_owner(first)
    kept = block(11)
    for _ in range(3000):
        last = native.new_owner()
    native.set_owner(last)
    also = block(13)
    assert native.owner_totals(first) == OwnerTotals(kept.nbytes, 1, 1)
    assert native.owner_totals(last) == OwnerTotals(also.nbytes, 1, 1)


def test_a_limit_refuses_at_the_line_and_changes_nothing(native: NativeRecorder) -> None:
    with native.slot() as slot:
        start = slot.read()
        refusals = 0 if native.refusal() is None else native.refusal().number
        assert native.set_limit(start.allocated + 1000) is None
        fits = block(1000)
        with pytest.raises(torch.OutOfMemoryError) as raised:
            block(1)
        assert str(raised.value) == (
            f"CPU out of memory. Tried to allocate 1 bytes with {start.allocated + 1000} bytes allocated, "
            f"over cudamem's limit of {start.allocated + 1000} bytes"
        )
        assert block(0).numel() == 0
        refusal = native.refusal()
        assert refusal is not None
        assert refusal[:2] == (refusals + 1, 1)
        assert (refusal.allocated, refusal.limit) == (start.allocated + 1000,) * 2
        seen = slot.read()
        assert (seen.allocated, seen.peak) == (start.allocated + 1000,) * 2
        assert seen.refusals == start.refusals + 1
        del fits
        again = block(1000)
        assert native.set_limit(None) == start.allocated + 1000
        more = block(10_000)
        assert slot.read().allocated == start.allocated + 11_000
        del again, more


def test_limit_below_what_is_live_refuses_everything(native: NativeRecorder) -> None:
    kept = block(5000)
    native.set_limit(10)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 4 bytes"):
        block(4)
    with pytest.raises(torch.OutOfMemoryError):
        kept.resize_(6000)
    native.set_limit(None)
    assert kept.untyped_storage().nbytes() == 5000
    with pytest.raises(ValueError, match="a memory limit cannot be -1 bytes"):
        native.set_limit(-1)


def test_limit_holds_exactly_under_threads(native: NativeRecorder) -> None:
    gc.collect()  # nothing of other tests goes meanwhile
    with native.slot() as slot:
        start = slot.read().allocated
        native.set_limit(start + 100_000)
        kept: list[torch.Tensor] = []

        def fill() -> None:
            try:
                while True:
                    kept.append(block(100))
            except torch.OutOfMemoryError:
                pass

        threads = [Thread(target=fill) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        native.set_limit(None)
        assert len(kept) == 1000
        assert slot.read().peak == start + 100_000


@pytest.mark.slow
@pytest.mark.parametrize("stacks", [False, True])
def test_fitting_requests_are_never_refused_across_threads(
    native: NativeRecorder, crowded: NativeRecorder, *, stacks: bool
) -> None:
    native.uninstall()
    crowded.install()
    try:
        with crowded.slot() as slot:
            crowded.set_recording(stacks=stacks, events=False)
            crowded.set_limit(slot.read().allocated + 200)
            seen = [others_beside(crowded, lambda: block(100)) for _ in range(2)]
            # when room is promised, when the block enters, when it is freed
            assert seen == [(3, 0), (3, 0)]
            assert slot.peek().peak == slot.peek().allocated + 200
            crowded.set_limit(slot.read().allocated + 199)
            assert others_beside(crowded, lambda: block(100)) == (3, 2)
    finally:
        crowded.set_limit(None)
        crowded.set_recording(stacks=False, events=False)
        crowded.uninstall()


def others_beside(crowded: NativeRecorder, run: Callable[[], object]) -> tuple[int, int]:
    """How often others came for 100 bytes while `run` ran, and how often they were refused."""
    counts = (ctypes.c_int32 * 2)()
    crowded._library.others_wait(100)
    run()
    crowded._library.others_leave(counts)
    came, refused = counts
    return came, refused


def test_a_failing_allocator_leaves_no_trace(native: NativeRecorder) -> None:
    with native.slot() as slot:
        start = slot.read()
        native.set_limit(start.allocated + 2**55)
        with pytest.raises(RuntimeError, match="allocate"):
            block(2**55)
        assert slot.read() == start
        assert block(100).nbytes == 100  # the room that was promised is free again


def test_events_tell_the_whole_story_in_order(native: NativeRecorder) -> None:
    owner = native.new_owner()
    native.set_owner(owner)
    native.set_limit(2**40)
    start = native.restart_events(1000)
    assert native.set_recording(stacks=False, events=True) == Recording(stacks=False, events=False)
    before = time.monotonic_ns()
    first = block(100)
    second = block(50)
    pointers = first.data_ptr(), second.data_ptr()
    del first
    with pytest.raises(torch.OutOfMemoryError):
        block(2**41)
    after = time.monotonic_ns()
    assert native.set_recording(stacks=False, events=False) == Recording(stacks=False, events=True)
    block(77)
    trace = native.events()
    assert (trace.start, trace.total) == (start, start + 4)
    one = trace.events[0].sequence
    assert [(e.kind, e.pointer, e.size, e.sequence) for e in trace.events] == [
        (ALLOCATED, pointers[0], 100, one),
        (ALLOCATED, pointers[1], 50, one + 1),
        (FREED, pointers[0], 100, one),
        (REFUSED, 0, 2**41, 0),
    ]
    assert {e.owner for e in trace.events} == {owner}
    assert {e.thread for e in trace.events} == {native.thread()}
    times = [e.time_ns for e in trace.events]
    slack = 1_000_000
    assert times == sorted(times)
    assert before - slack <= times[0] <= times[-1] <= after + slack
    assert [e.kind for e in native.events(start + 3).events] == [REFUSED]
    assert native.events(start + 4).events == []
    refusal = native.refusal()
    assert refusal is not None
    assert refusal.event == start + 4


def test_in_place_leaves_the_ring_as_it_was_found(native: NativeRecorder) -> None:
    native.restart_events(8)
    with in_place():
        assert native.events_capacity() == 0
    assert native.events_capacity() == 8


def test_a_full_ring_keeps_the_last_and_says_so(native: NativeRecorder) -> None:
    gc.collect()  # nothing of other tests goes meanwhile
    start = native.restart_events(8)
    native.set_recording(stacks=False, events=True)
    for size in range(1, 11):
        block(size)
    trace = native.events(start)
    assert (trace.start, trace.total) == (start + 12, start + 20)
    assert [(e.kind, e.size) for e in trace.events] == [
        (kind, size) for size in range(7, 11) for kind in (ALLOCATED, FREED)
    ]
    assert native.restart_events(8) == start + 20
    assert native.events().events == []
    assert native.events_capacity() == 8
    assert native.restart_events(0) == start + 20
    assert native.events_capacity() == 0
    block(1)
    assert native.events() == (start + 20, start + 20, [])
    with pytest.raises(MemoryError, match="no memory for a ring of"):
        native.restart_events(2**50)
    assert native.events_capacity() == 0
    assert native.restart_events(DEFAULT_EVENTS) == start + 20
    assert native.events_capacity() == DEFAULT_EVENTS


def test_peak_event_is_where_a_replay_finds_the_peak(native: NativeRecorder) -> None:
    start = native.restart_events(100)
    native.set_recording(stacks=False, events=True)
    with native.slot() as slot:
        low = block(10)
        high = block(90)
        del high
        also_high = block(90)  # the same height again is not a new peak
        del also_high, low
        reading = slot.read()
        assert reading.peak_event == start + 2
        assert reading.events == start + 6
        assert slot.read().peak_event == start + 6


def test_a_missed_free_shows_when_the_address_is_reused(native: NativeRecorder, helper: ctypes.PyDLL) -> None:
    # Storages can be given other deleters. Blocks of this size come from mmap, which gives the address out again.
    size = 64 << 20
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    owner = native.new_owner()
    native.set_owner(owner)
    first = helper.helper_raw_allocate(size)
    libc.free(first)
    assert helper.helper_raw_allocate(size) == first
    assert native.owner_totals(owner) == OwnerTotals(size, 1, 2)
    helper.helper_raw_free(first)
    assert native.owner_totals(owner) == OwnerTotals(0, 0, 2)


def test_frees_of_blocks_it_never_counted_lower_nothing(native: NativeRecorder) -> None:
    native.uninstall()
    before = block(1 << 20)
    held = torch.empty(0, dtype=torch.uint8)
    native.install()
    with native.slot() as slot:
        start = slot.read()
        del before
        assert slot.read().allocated == start.allocated
        # A storage made while the recorder was in place comes back to it, also when it is not.
        held = block(10)
        native.uninstall()
        assert not native.is_installed()
        held.resize_(5000)
        assert slot.read().allocated == start.allocated
        native.install()
        del held
        end = slot.read()
        assert end.allocated == start.allocated
        assert end.unknown_frees == start.unknown_frees + 1


def test_installing_twice_is_once(native: NativeRecorder) -> None:
    native.install()
    assert native.is_installed()
    with native.slot() as slot:
        start = slot.read()
        kept = block(8)
        assert slot.read().allocated == start.allocated + 8
        native.uninstall()
        native.uninstall()
        assert not native.is_installed()
        uncounted = block(100)
        assert slot.read().allocated == start.allocated + 8
        del kept, uncounted
        assert slot.read().allocated == start.allocated
