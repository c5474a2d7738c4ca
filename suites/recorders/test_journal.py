"""Journals: exact notes and independent peaks, on the CPU and on a device without memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders import journal as journals
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.recorders.cuda import CudaRecorder, CudaStatistics
from cudamem_testing.recorders.journal import CpuJournal, CudaJournal, Journal, SlowCudaJournal, open_journal
from cudamem_testing.recorders.native import NativeRecorder
from cudamem_testing.recorders.native_device import PLACES
from cudamem_testing.recorders.native_journal import Note
from cudamem_testing.recorders.peaks import Levels
from suites.recorders.allocator import SEGMENT, Allocator
from suites.recorders.device import PRIVATE, CppAllocator
from suites.versions import COMMON_COUNTERS

MIB = 2**20
CARD = Device("cuda", 0)


def block(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


# -- the CPU ----------------------------------------------------------------------------------------------


def test_notes_of_the_cpu(native: NativeRecorder) -> None:
    found = open_journal(Device("cpu"))
    assert isinstance(found, CpuJournal)
    assert found.note() == 0
    kept = block(1000)
    del kept
    kept = block(300)
    assert found.note() == 1
    assert found.note() == 2
    del kept
    assert found.note() == 3
    notes = found.notes()
    start, total, count = notes[0].allocated, notes[0].allocated_total, notes[0].allocations
    assert notes[1:] == [
        Note(start + 300, start + 1000, total + 1300, count + 2, -1, -1, 0),
        Note(start + 300, start + 300, total + 1300, count + 2, -1, -1, 0),
        Note(start, start + 300, total + 1300, count + 2, -1, -1, 0),
    ]
    found.close()
    assert found.note() == -1
    assert found.notes() == []


def test_a_journal_takes_no_peak_from_others(native: NativeRecorder) -> None:
    gc.collect()  # nothing of other tests goes meanwhile
    with native.slot() as slot:
        start = slot.read().allocated
        one, two = native.journal(), native.journal()
        assert one is not None
        assert two is not None
        one.note()
        del one.notes()[:]  # a list of the caller's own
        two.note()
        block(5000)
        one.note()
        block(100)
        one.note()
        two.note()
        assert [note.peak - start for note in one.notes()[1:]] == [5000, 100]
        assert [note.peak - start for note in two.notes()[1:]] == [5000]
        assert slot.read().peak == start + 5000
        assert one.take_highest() == {}
        one.close()
        two.close()
        one.close()


def test_many_notes_are_all_kept(native: NativeRecorder) -> None:
    journal = native.journal()
    assert journal is not None
    assert [journal.note() for _ in range(10_000)] == [*range(10_000)]
    assert len(journal.notes()) == 10_000
    journal.close()


def test_there_can_be_too_many(native: NativeRecorder) -> None:
    found = [native.journal() for _ in range(65)]
    assert [one is None for one in found] == [False] * 64 + [True]
    assert open_journal(Device("cpu")) == "too many recordings are open"
    for one in found:
        if one is not None:
            one.close()
    again = native.journal()
    assert again is not None
    again.close()


def test_the_recorder_is_taken_out_again() -> None:
    native = NativeRecorder.load()
    if native.is_installed():
        pytest.skip("the recorder is in place for the whole run")
    found = open_journal(Device("cpu"))
    assert isinstance(found, CpuJournal)
    assert native.is_installed()
    found.close()
    assert not native.is_installed()


def test_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(say: object) -> NativeRecorder:
        raise RecorderUnavailable("no C++ compiler found\n  more of it")

    monkeypatch.setattr(NativeRecorder, "load", unavailable)
    assert open_journal(Device("cpu")) == "no C++ compiler found"
    monkeypatch.setattr(torch_api, "cuda_initialized", lambda: False)
    assert open_journal(CARD) == "CUDA is not initialised, so cuda:0 holds nothing yet"
    assert open_journal(Device("xpu", 1)) == "torch's allocator of xpu:1 is not measured"


# -- a device with counters and no memory -----------------------------------------------------------------


@pytest.mark.slow
def test_notes_of_a_device(native: NativeRecorder, device: CppAllocator) -> None:
    card = device.cards[0]
    card.allocate(512)
    card.allocate(5120)
    card.free(1)
    journal, other = native.journal(PRIVATE), native.journal(PRIVATE)
    assert journal is not None
    assert other is not None
    journal.note()
    other.note()
    card.allocate(3 * MIB)
    card.free(1)
    journal.note()
    card.allocate(1000)
    card.retries = 2
    journal.note()
    other.note()
    assert journal.notes() == [
        Note(512, 5632, 5632, 2, 512, SEGMENT, 0),
        Note(512, 3 * MIB + 512, 3 * MIB + 5632, 3, 512, 2 * SEGMENT, 0),
        Note(1536, 1536, 3 * MIB + 6656, 4, 1536, 2 * SEGMENT, 2),
    ]
    assert [note.peak for note in other.notes()] == [5632, 3 * MIB + 512]
    assert card.statistics()["allocated_bytes"]["all"]["peak"] == 1536
    owed = journal.take_highest()
    assert [*owed] == [*PLACES]
    pools = [owed["allocated_bytes", pool] for pool in ("all", "small_pool", "large_pool")]
    assert pools == [3 * MIB + 512, 5632, 3 * MIB]
    assert owed["segment", "all"] == 2
    assert owed["oversize_allocations",] == 0
    # A peak that other code is about to reset was folded when it was read, so the next note keeps it.
    card.allocate(7000)
    card.free(2)
    resets = device.library.device_resets(0)
    assert journal.take_highest()["requested_bytes", "all"] == 512 + 1000 + 7000
    assert device.library.device_resets(0) == resets
    card.free(1)
    journal.note()
    assert journal.notes()[-1].peak == 1536 + 7168
    journal.close()
    other.close()
    assert native.journal(PRIVATE, 2) is None
    assert native.journal(1, 0) is None or torch.cuda.is_available()


# -- a card, as torch's functions show it -----------------------------------------------------------------


class PythonJournal:
    """What the native journal of a card does, on the model of its allocator."""

    def __init__(self, allocator: Allocator) -> None:
        self.card = allocator.cards[0]
        self.allocator = allocator
        self.taken: list[Note] = []
        self.pending = 0
        self.highest: dict[tuple[str, ...], int] = {}

    def fold(self) -> None:
        for name, stat in self.card.stats.items():
            self.highest[name] = max(self.highest.get(name, 0), stat["peak"])
        self.pending = max(self.pending, self.card.stats["allocated_bytes", "all"]["peak"])

    def note(self) -> int:
        self.fold()
        stat = self.card.stats["allocated_bytes", "all"]
        self.taken.append(Note(stat["current"], self.pending, stat["allocated"], 0, 0, 0, 0))
        self.allocator.reset_peaks(0)
        self.pending = 0
        return len(self.taken) - 1

    def notes(self) -> list[Note]:
        return self.taken

    def take_highest(self) -> Levels:
        self.fold()
        found, self.highest = self.highest, {}
        return found

    def close(self) -> None:
        pass


@pytest.fixture
def allocator() -> Iterator[Allocator]:
    allocator = Allocator(cards=2)
    with allocator.in_place():
        yield allocator


def test_peaks_reset_by_notes_reach_the_test_and_windows(allocator: Allocator) -> None:
    card = allocator.cards[0]
    statistics = CudaStatistics()
    window = CudaRecorder(CARD, statistics)
    window.read_and_reset_peaks()
    journal = CudaJournal(CARD, PythonJournal(allocator))  # type: ignore[arg-type]
    journal.note()
    card.allocate(3 * MIB)
    card.free(0)
    journal.note()
    assert card.stats["allocated_bytes", "all"]["peak"] == 0
    seen = allocator.bindings._cuda_memoryStats(0)
    assert seen["allocated_bytes"]["all"]["peak"] == 3 * MIB
    assert seen["allocated_bytes"]["large_pool"]["peak"] == 3 * MIB
    assert seen["allocated_bytes"]["small_pool"]["peak"] == 0
    allocator.bindings._cuda_resetPeakMemoryStats(0)
    assert allocator.bindings._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 0
    card.allocate(100)
    journal.note()
    journal.close()
    assert allocator.bindings._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 512
    counters = window.read_and_reset_peaks()
    assert (counters.allocated_peak, counters.reserved_peak) == (3 * MIB, 2 * SEGMENT)
    assert [note.peak for note in journal.notes()[1:]] == [3 * MIB, 512]
    statistics.close()


def test_a_journal_is_noticed_by_a_window_that_read_alone() -> None:
    allocator = Allocator()
    with allocator.in_place(native=True):
        statistics, card = CudaStatistics(), allocator.cards[0]
        window = CudaRecorder(CARD, statistics)
        for _ in range(3):
            card.allocate(3 * MIB)
            card.free(0)
            assert window.read_and_reset_peaks().allocated_peak == 3 * MIB
        journal = CudaJournal(CARD, PythonJournal(allocator))  # type: ignore[arg-type]
        journal.note()
        card.allocate(3 * MIB)
        card.free(0)
        journal.note()
        assert window.read_and_reset_peaks().allocated_peak == 3 * MIB
        card.allocate(3 * MIB)
        card.free(0)
        assert window.read_and_reset_peaks().allocated_peak == 3 * MIB
        assert journal.notes()[journal.note()].peak == 3 * MIB
        journal.close()
        statistics.close()


Step = tuple[str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 3 * MIB)),
        st.tuples(st.sampled_from(("free", "note", "window", "read", "reset")), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("natively", [False, True])
@given(steps=STEPS)
def test_each_reader_sees_what_it_would_see_alone(natively: bool, steps: list[Step]) -> None:
    allocator = Allocator()
    with allocator.in_place(native=natively):
        statistics = CudaStatistics()
        window = CudaRecorder(CARD, statistics)
        window.read_and_reset_peaks()
        journal = CudaJournal(CARD, PythonJournal(allocator))  # type: ignore[arg-type]
        journal.note()
        level, highest = 0, {"note": 0, "window": 0, "test": 0}
        for what, size in steps:
            if what == "allocate":
                allocator.cards[0].allocate(size)
            elif what == "free" and allocator.cards[0].blocks:
                allocator.cards[0].free(0)
            elif what == "reset":
                allocator.bindings._cuda_resetPeakMemoryStats(0)
                highest["test"] = level
            elif what == "read":
                peak = allocator.bindings._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"]
                assert peak == highest["test"]
            elif what == "note":
                assert journal.notes()[journal.note()].peak == highest["note"]
                highest["note"] = level
            elif what == "window":
                assert window.read_and_reset_peaks().allocated_peak == highest["window"]
                highest["window"] = level
            level = allocator.cards[0].now("allocated_bytes")
            highest = {name: max(peak, level) for name, peak in highest.items()}
        journal.close()
        statistics.close()


def test_slow_notes_of_a_card(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    card = allocator.cards[0]
    card.allocate(100)
    monkeypatch.setattr(torch_api, "allocator_backend", lambda: "cudaMallocAsync")
    journal: Journal | str = open_journal(CARD)
    assert isinstance(journal, SlowCudaJournal)
    assert journal.remarks == (
        "the card's statistics were read through Python, about 50 µs per operator: the allocator is cudaMallocAsync",
    )
    journal.note()
    card.allocate(3 * MIB)
    card.free(1)
    card.allocate(600)
    allocator.bindings._cuda_resetPeakMemoryStats(0)
    assert journal.note() == 1
    assert journal.notes() == [
        Note(512, 512, 512, 1, 512, SEGMENT, 0),
        Note(1536, 3 * MIB + 512, 3 * MIB + 1536, 3, 1536, 2 * SEGMENT, 0),
    ]
    journal.close()
    allocator.initialized = True
    allocator.cards.clear()
    assert open_journal(CARD) == (
        "the allocator of cuda:0 has no statistics: Invalid device argument 0: did you call init?"
    )


def test_without_counters_for_cpp_python_reads(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_api, "allocator_backend", lambda: "native")
    monkeypatch.setattr(NativeRecorder, "journal", lambda self, device_type=-1, index=0: None)
    journal = open_journal(CARD)
    assert isinstance(journal, SlowCudaJournal)
    assert journal.remarks[0].endswith("this torch has no C++ counters (new in 2.9)")
    journal.close()


@pytest.mark.gpu
@pytest.mark.skipif(not COMMON_COUNTERS, reason="before torch 2.9 the counters of a card are read through Python alone")
def test_notes_of_a_card() -> None:
    torch.empty(1, device="cuda")
    found = open_journal(CARD)
    assert isinstance(found, CudaJournal)
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    found.note()
    kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    del kept
    kept = torch.empty(1000, dtype=torch.uint8, device="cuda")
    found.note()
    start, end = found.notes()
    assert end.allocated - start.allocated == 1024
    assert end.peak - start.allocated == 64 * MIB
    assert end.allocated_total - start.allocated_total == 64 * MIB + 1024
    assert end.active == torch.cuda.memory_stats()["active_bytes.all.current"]
    assert end.reserved == torch.cuda.memory_reserved()
    assert torch.cuda.max_memory_allocated() == end.peak
    found.close()
    assert torch.cuda.max_memory_allocated() == end.peak
    assert journals.UNKNOWN not in start
    del kept
