"""The CPU recorder against a reference ledger, over random programs on several threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.recorders.native import NativeRecorder
from cudamem_testing.recorders.native_records import ALLOCATED, BlockRecord, OwnerTotals, Trace
from suites.recorders.in_place import in_place

THREADS = 3
SIZES = st.one_of(st.integers(0, 64), st.integers(0, 1 << 16))
STEP = st.one_of(
    st.tuples(st.just("allocate"), SIZES),
    st.tuples(st.just("free"), st.integers(0, 30)),
    st.tuples(st.just("resize"), st.integers(0, 30), SIZES),
    st.tuples(st.just("owner"), st.integers(0, 2)),
)
PROGRAM = st.lists(st.tuples(st.integers(0, THREADS - 1), STEP), max_size=60)


@dataclass
class Reference:
    """What the recorder is to say, by the plainest means."""

    live: dict[int, int] = field(default_factory=dict)
    owner_of: dict[int, int] = field(default_factory=dict)
    made: Counter[int] = field(default_factory=Counter)
    owner: int = 0
    peak: int = 0
    own: int = 0
    own_peak: int = 0

    def allocate(self, key: int, size: int) -> None:
        if size:
            self.live[key] = size
            self.owner_of[key] = self.owner
            self.made[self.owner] += 1
            self.peak = max(self.peak, sum(self.live.values()))
            self.own += size
            self.own_peak = max(self.own_peak, self.own)

    def free(self, key: int) -> None:
        size = self.live.pop(key, 0)
        if size and self.owner_of[key] == self.owner:
            self.own -= size

    def totals(self, owner: int) -> OwnerTotals:
        mine = [size for key, size in self.live.items() if self.owner_of[key] == owner]
        return OwnerTotals(sum(mine), len(mine), self.made[owner])


def replayed(trace: Trace, stop: int | None = None) -> dict[int, int]:
    """Address -> size of what the events left live; an address is never given out twice."""
    live: dict[int, int] = {}
    for event in trace.events[:stop]:
        if event.kind == ALLOCATED:
            assert event.pointer not in live
            live[event.pointer] = event.size
        else:
            assert live.pop(event.pointer) == event.size
    return live


def sizes(blocks: list[BlockRecord]) -> dict[int, int]:
    return {block.pointer: block.size for block in blocks}


@contextmanager
def recording(*, stacks: bool = False, events: bool = False) -> Iterator[NativeRecorder]:
    """The recorder with an empty ring. No collection frees a tensor of another test meanwhile."""
    with CollectorPaused(), in_place() as native:
        native.restart_events(4096)
        native.set_recording(stacks=stacks, events=events)
        yield native


@given(PROGRAM)
def test_agrees_with_the_reference_after_every_step(program: list[tuple[int, tuple]]) -> None:
    with recording(events=True) as native:
        check_steps(native, program)


def check_steps(native: NativeRecorder, program: list[tuple[int, tuple]]) -> None:
    owners = [native.new_owner() for _ in range(3)]
    first = native.events().total
    native.set_owner(owners[0])
    reference = Reference(owner=owners[0])
    tensors: list[tuple[int, torch.Tensor]] = []
    key = 0
    with native.slot() as slot, ThreadPoolExecutor(1) as a, ThreadPoolExecutor(1) as b, ThreadPoolExecutor(1) as c:
        base = slot.read()
        for thread, (step, *arguments) in program:
            run = (a, b, c)[thread].submit
            if step == "owner":
                reference.owner = owners[arguments[0]]
                native.set_owner(reference.owner)
            elif step == "allocate":
                key += 1
                tensors.append((key, run(torch.empty, arguments[0], dtype=torch.uint8).result()))
                reference.allocate(key, arguments[0])
            elif tensors:
                at = arguments[0] % len(tensors)
                old, tensor = tensors[at]
                storage = tensor.untyped_storage()
                size = arguments[1] if step == "resize" else 0
                run(storage.resize_, size).result()
                key += 1
                if step == "resize":
                    reference.allocate(key, size)  # the new block exists before the old one goes
                    tensors[at] = key, tensor
                else:
                    del tensors[at]
                reference.free(old)
                del tensor, storage
            seen = slot.peek()
            assert seen.allocated - base.allocated == sum(reference.live.values())
            assert seen.peak - base.allocated == reference.peak
            assert (seen.own - base.own, seen.own_peak - base.own) == (reference.own, reference.own_peak)
            assert seen.live_blocks - base.live_blocks == len(reference.live)
            assert seen.allocations - base.allocations == reference.made.total()
        for owner in owners:
            assert native.owner_totals(owner) == reference.totals(owner)
            assert len(native.scan(owner)) == reference.totals(owner).live_blocks
        trace = native.events(first)
        assert replayed(trace) == sizes([block for owner in owners for block in native.scan(owner)])
        assert sum(replayed(trace, slot.peek().peak_event - first).values()) == reference.peak
        tensors.clear()
        assert slot.read().allocated == base.allocated


@given(st.lists(st.lists(STEP, max_size=40), min_size=THREADS, max_size=THREADS))
def test_is_exact_when_threads_run_freely(programs: list[list[tuple]]) -> None:
    with recording(stacks=True, events=True) as native:
        check_end(native, programs)


def check_end(native: NativeRecorder, programs: list[list[tuple]]) -> None:
    owner = native.new_owner()
    native.set_owner(owner)
    first = native.events().total

    def run(program: list[tuple]) -> list[torch.Tensor]:
        mine: list[torch.Tensor] = []
        for step, *arguments in program:
            if step == "allocate":
                mine.append(torch.empty(arguments[0], dtype=torch.uint8))
            elif mine and step == "free":
                del mine[arguments[0] % len(mine)]
            elif mine and step == "resize":
                mine[arguments[0] % len(mine)].untyped_storage().resize_(arguments[1])
        return mine

    with native.slot() as slot, ThreadPoolExecutor(THREADS) as pool:
        base = slot.read()
        kept = list(pool.map(run, programs))
        native.set_recording(stacks=False, events=False)
        seen = slot.read()
        trace = native.events(first)
        storages = [t.untyped_storage() for mine in kept for t in mine]
        expected = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}
        assert replayed(trace) == expected == sizes(native.scan(owner))
        assert seen.allocated - base.allocated == sum(expected.values())
        height = peak = 0
        for event in trace.events:
            height += event.size if event.kind == ALLOCATED else -event.size
            peak = max(peak, height)
        assert seen.peak - base.allocated == peak
        assert sum(replayed(trace, seen.peak_event - first).values()) == peak
        del kept, storages
    assert native.owner_totals(owner).live_bytes == 0


def test_a_table_that_grows_and_shrinks_loses_nothing() -> None:
    with recording() as native:
        owner = native.new_owner()
        native.set_owner(owner)
        kept = [torch.empty(1 + i % 97, dtype=torch.uint8) for i in range(20_000)]
        native.set_owner(0)
        del kept[::2]
        expected = {t.data_ptr(): t.nbytes for t in kept}
        assert sizes(native.scan(owner)) == expected
        assert native.owner_totals(owner) == OwnerTotals(sum(expected.values()), 10_000, 20_000)
        kept.clear()
        assert native.scan(owner) == []
