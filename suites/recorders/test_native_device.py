"""Counters of a device in C++: the same numbers as through Python, and every peak where it is due."""

from __future__ import annotations

import ctypes
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing import torch_api
from cudamem_testing.model.counters import PEAKS, Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders import build, cuda, native
from cudamem_testing.recorders.cuda import CudaRecorder, CudaStatistics, native_card
from cudamem_testing.recorders.journal import CudaJournal, open_journal
from cudamem_testing.recorders.native import NativeRecorder
from cudamem_testing.recorders.native_device import PLACES, NativeDevice
from suites.recorders.allocator import Allocator, NativeCard
from suites.recorders.device import PRIVATE, CppAllocator
from suites.recorders.readers import NOTICED, Step, opened, programs, run
from suites.versions import COMMON_COUNTERS

MIB = 2**20
CARD = Device("cuda", 0)


# -- a device whose counters are in C++ -------------------------------------------------------------------


@pytest.mark.slow
def test_every_number_is_the_one_of_its_name(device: CppAllocator) -> None:
    names = [[part.encode() for part in (*place, "")][:2] for place in PLACES]
    assert [device.library.device_place(*name) for name in names] == [*range(len(PLACES))]
    level = {place: 1000 * number for number, place in enumerate(PLACES, 1)}
    for at, place in enumerate(PLACES):
        device.library.device_change(1, at, level[place])
        device.library.device_change(1, at, -at)
    device.cards[1].retries = 7
    card, now = device.native_card(1), {place: level[place] - at for at, place in enumerate(PLACES)}
    sizes = [(now[name, "all"], level[name, "all"]) for name in cuda.PEAKED]
    counts = level["allocation", "all"], level["segment", "all"], 7, now["allocation", "all"]
    first = Counters(*(number for pair in sizes for number in pair), *counts)
    assert card.read_alone() is None  # its peaks are not known yet
    assert card.read() == (first, level)
    rested = first._replace(**{name: current for name, (current, _) in zip(PEAKS, sizes, strict=True)})
    assert card.read() == (rested, {})
    assert card.read_alone() == rested
    assert [device.library.device_resets(index) for index in range(2)] == [0, 1]


@pytest.mark.parametrize("name", cuda.PEAKED)
def test_one_peak_above_what_is_there_starts_new_ones(device: CppAllocator, name: str) -> None:
    card, at = device.native_card(0), PLACES.index((name, "all"))
    device.library.device_change(0, at, 5)
    assert card.read() is not None
    assert device.library.device_resets(0) == 0
    device.library.device_change(0, at, -1)
    assert card.read() is not None
    assert device.library.device_resets(0) == 1


def test_what_is_read_alone_is_the_same_until_something_changes(device: CppAllocator) -> None:
    card, change = device.native_card(0), device.library.device_change
    size, private = PLACES.index(("requested_bytes", "all")), PLACES.index(("allocation", "small_pool"))
    change(0, size, 5)
    assert card.read() is not None

    def read() -> Counters:
        found = card.read_alone()
        assert type(found) is Counters
        return found

    first = read()
    assert [read() is first, read() is first] == [True, True]
    change(0, private, 1)  # is counted in no number of ours
    assert read() is first
    change(0, size, 1)
    more = read()
    assert more is not first
    assert (more.requested, read() is more) == (6, True)
    change(0, size, -1)
    assert card.read_alone() is None  # a peak that was not reported
    assert (card.read() or [None])[0] == more._replace(requested=5)
    change(0, size, 1)
    change(0, size, -1)
    less = read()  # as much, with a peak above it that was
    assert (less.requested, less.requested_peak) == (5, 6)
    change(0, size, 1)
    change(0, size, -1)
    equal = read()  # another peak of that height
    assert (equal == less, equal is less) == (True, False)
    again = read()  # that peak was read
    assert again is not less
    assert (again.requested_peak, read() is again) == (5, True)
    assert card.read() == (again, {})  # another reading, which may be of more than is read alone
    once_more = read()
    assert (once_more == again, once_more is again) == (True, False)


def test_a_reading_that_is_collected_in_loses_no_peak(device: CppAllocator) -> None:
    """Garbage is collected where an object is made, from Python 3.12 on soon after, and what it frees may read, too."""
    card, change, at = device.native_card(0), device.library.device_change, PLACES.index(("requested_bytes", "all"))
    inner: list[Counters | None] = []

    class Reads:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            change(0, at, 3)
            inner.append(card.read_alone())

    change(0, at, 5)
    change(0, at, -1)
    card.read()
    before = gc.get_threshold()
    gc.collect()
    Reads()
    change(0, at, 1)
    change(0, at, -1)
    gc.set_threshold(1)
    try:
        outer = card.read_alone()
        [[] for _ in range(10)]  # newer Pythons collect a little later
    finally:
        gc.set_threshold(*before)
    assert outer is not None
    assert (outer.requested, outer.requested_peak) == (4, 5)
    assert [one and one.requested for one in inner] == [7]
    last = card.read_alone()
    assert last is not None
    assert (last.requested, card.read_alone() is last) == (7, True)
    assert last is not outer
    assert (last is inner[0]) == (sys.version_info >= (3, 12)), "before, the outer reading ended after the inner one"


def test_counters_are_freed_with_their_functions(device: CppAllocator) -> None:
    before = sys.getrefcount(Counters)
    card = device.native_card(0)
    card.read_alone()
    device.library.device_change(0, 0, 1)
    card.read_alone()
    card.read()
    del card
    assert sys.getrefcount(Counters) == before


def test_peaks_are_reported_if_one_is_higher_than_before(device: CppAllocator) -> None:
    card, at, other = device.native_card(0), *(PLACES.index((name, "all")) for name in cuda.PEAKED[:2])

    def used(place: int, size: int, *, every: bool = False) -> dict[Any, int]:
        device.library.device_change(0, place, size)
        device.library.device_change(0, place, -size)
        found = card.read(every=every)
        assert found is not None
        return {place: level for place, level in (found[1] or {}).items() if level}

    assert used(at, 5) == {PLACES[at]: 5}
    assert used(at, 5) == {}
    assert used(at, 5, every=True) == {PLACES[at]: 5}
    assert used(other, 3) == {PLACES[other]: 3}
    assert used(at, 6) == {PLACES[at]: 6}
    card.forget()
    assert used(at, 1) == {PLACES[at]: 1}
    assert device.library.device_resets(0) == 6


def test_what_is_no_device_is_not_read(device: CppAllocator) -> None:
    library = NativeRecorder.load()
    assert library.device(PRIVATE, 2) is None
    assert library.device(PRIVATE, -1) is None
    assert library.device(2, 0) is None
    assert NativeDevice(library._library, PRIVATE, 2).read() is None


def open_private_journal() -> CudaJournal:
    found = NativeRecorder.load().journal(PRIVATE)
    assert found is not None
    return CudaJournal(CARD, found)


@pytest.mark.parametrize("program", NOTICED.values(), ids=NOTICED)
@pytest.mark.parametrize("journal", [None, open_private_journal], ids=["alone", "with a journal"])
def test_a_reader_alone_notices(
    device: CppAllocator, program: list[Step], journal: Callable[[], CudaJournal] | None
) -> None:
    run(program, device, (True, True, True), journal)


@given(programs(), st.tuples(*[st.booleans()] * 3))
def test_each_reader_sees_what_it_would_see_alone(
    device_library: ctypes.PyDLL, program: list[Step], natively: tuple[bool, ...]
) -> None:
    run(program, CppAllocator(device_library), natively, open_private_journal)


def test_peaks_of_private_pools_are_asked_through_python(device: CppAllocator) -> None:
    if not device.library.device_add_private_pool(0):
        pytest.skip("this torch does not count private pools")
    with device.in_place(native=True):
        reader = CudaStatistics()
        recorder, card = CudaRecorder(CARD, reader), device.cards[0]
        card.allocate(512)
        assert reader.count(0) is not None  # nothing is reset, so nothing is hidden
        card.allocate(1024)
        card.free(1)
        assert reader.count(0) is None
        assert device.library.device_resets(0) == 0
        assert recorder.read_and_reset_peaks().allocated_peak == 1536
        assert recorder.read_and_reset_peaks().allocated_peak == 512
        reader.close()


# -- when it is used --------------------------------------------------------------------------------------


def test_an_allocator_of_another_kind_is_read_through_python(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    found = SimpleNamespace(device=lambda device_type, index: asked.append(index) or "a card")
    monkeypatch.setattr(NativeRecorder, "load_if_compiled", lambda: found)
    for backend in ("cudaMallocAsync", "pluggable", "cpu"):
        monkeypatch.setattr(torch_api, "allocator_backend", lambda backend=backend: backend)
        assert native_card(0) is None
    assert asked == []
    monkeypatch.setattr(torch_api, "allocator_backend", lambda: "native")
    assert native_card(3) == "a card"
    assert asked == [3]
    monkeypatch.setattr(NativeRecorder, "load_if_compiled", lambda: None)
    assert native_card(0) is None


def test_nothing_is_compiled_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAMEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("cudamem_testing.recorders.cache._TEMPORARY", ())
    monkeypatch.setattr(build, "_run_compiler", pytest.fail)
    monkeypatch.setattr(native, "_of_this_process", native.cache(native._of_this_process.__wrapped__))
    assert NativeRecorder.load_if_compiled() is None
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / build._name(build.CPU_RECORDER)).write_text("no library")
    assert NativeRecorder.load_if_compiled() is None


def test_what_this_process_has_loaded_is_used(
    native: NativeRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDAMEM_CACHE", str(tmp_path / "empty"))
    found = NativeRecorder.load_if_compiled()
    assert found is not None
    assert found._library is native._library


def test_the_library_is_loaded_once_after_cuda_is_initialised() -> None:
    allocator, asked = Allocator(), []
    with allocator.in_place(), pytest.MonkeyPatch.context() as inside:  # what is replaced last comes back first
        inside.setattr(cuda, "native_card", asked.append)
        allocator.initialized = False
        reader = CudaStatistics()
        recorder = CudaRecorder(CARD, reader)
        recorder.read_and_reset_peaks()
        assert asked == []
        allocator.initialized = True
        recorder.read_and_reset_peaks()
        recorder.read_and_reset_peaks()
        assert asked == [0]
        reader.close()


def test_python_reads_where_the_library_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeCard, "read", lambda self, **asked: None)
    allocator = Allocator()
    with allocator.in_place(native=True):
        reader = CudaStatistics()
        allocator.cards[0].allocate(512)
        assert CudaRecorder(CARD, reader).read_and_reset_peaks().allocated == 512
        reader.close()


# -- a real card ------------------------------------------------------------------------------------------

SIZES = (1, 600, 5000, MIB, 3 * MIB, 12 * MIB, 40 * MIB)


@pytest.fixture
def card() -> None:
    """CUDA initialised, the library compiled, no garbage and no cached segments; all peaks are what is there."""
    if not COMMON_COUNTERS:
        pytest.skip("before torch 2.9 the counters of a card are read through Python alone")
    NativeRecorder.load()
    torch.ones(1, device="cuda")
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(0)


def through_python() -> CudaStatistics:
    return opened(natively=False)


def act(choose: random.Random, blocks: list[torch.Tensor]) -> bool:
    """One step of a test's own; whether it reset the peaks."""
    what = choose.random()
    if what < 0.5 or not blocks:
        blocks.append(torch.empty(choose.choice(SIZES), dtype=torch.uint8, device="cuda:0"))
    elif what < 0.9:
        del blocks[choose.randrange(len(blocks))]
    elif what < 0.94:
        choose.choice((torch.cuda, torch.accelerator)).reset_peak_memory_stats(0)
        return True
    elif what < 0.97:
        torch.cuda.reset_accumulated_memory_stats(0)
    else:
        torch.cuda.empty_cache()
    return False


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(5))
def test_both_ways_tell_the_same_on_a_card(card: None, seed: int) -> None:
    choose, blocks = random.Random(seed), list[torch.Tensor]()
    natively, python = CudaStatistics(), through_python()
    one, two = CudaRecorder(CARD, natively), CudaRecorder(CARD, python)
    assert natively.count(0) is not None
    two.read_and_reset_peaks()
    for _ in range(300):
        act(choose, blocks)
        if choose.random() < 0.4:
            recorders = [one, two] if choose.random() < 0.5 else [two, one]
            first, second = (recorder.read_and_reset_peaks() for recorder in recorders)
            assert first == second
            assert first.notes == ()
            now = torch.cuda.memory_stats(0)
            assert [first.allocated, first.requested, first.reserved, first.active, first.blocks] == [
                now[f"{name}.all.current"]
                for name in ("allocated_bytes", "requested_bytes", "reserved_bytes", "active_bytes", "allocation")
            ]
    natively.close()
    python.close()


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(5))
def test_the_test_sees_its_own_peaks_on_a_card(card: None, seed: int) -> None:
    choose, blocks = random.Random(seed), list[torch.Tensor]()
    natively, python, journal = CudaStatistics(), through_python(), open_journal(CARD)
    assert natively.count(0) is not None
    assert isinstance(journal, CudaJournal)
    looks = (
        CudaRecorder(CARD, natively).read_and_reset_peaks,
        CudaRecorder(CARD, python).read_and_reset_peaks,
        journal.note,
        lambda: None,
    )
    expected: dict[str, int] = {}
    for _ in range(600):
        reset = act(choose, blocks)
        choose.choice(looks)()
        now = torch.cuda.memory_stats(0)
        for name in now:
            # Free parts of segments come and go within one call, so their peaks need not be a level between calls.
            if name.endswith(".peak") and not name.startswith("inactive_split"):
                level = now[name.removesuffix("peak") + "current"]
                expected[name] = level if reset else max(expected.get(name, level), level)
        assert {name: now[name] for name in expected} == expected
    journal.close()
    natively.close()
    python.close()


@pytest.mark.gpu
def test_notes_and_windows_keep_separate_peaks_on_a_card(card: None) -> None:
    natively = CudaStatistics()
    recorder = CudaRecorder(CARD, natively)
    assert natively.count(0) is not None
    journal = open_journal(CARD)
    assert isinstance(journal, CudaJournal)
    start = torch.cuda.memory_allocated(0)

    def take(size: int) -> None:
        torch.empty(size, dtype=torch.uint8, device="cuda:0")

    journal.note()
    recorder.read_and_reset_peaks()
    take(64 * MIB)
    journal.note()  # resets what the window has not read
    take(32 * MIB)
    assert recorder.read_and_reset_peaks().allocated_peak - start == 64 * MIB  # resets what the journal has not noted
    take(16 * MIB)
    journal.note()
    assert recorder.read_and_reset_peaks().allocated_peak - start == 16 * MIB
    assert recorder.read_and_reset_peaks().allocated_peak == start
    journal.note()
    assert [note.peak - start for note in journal.notes()[1:]] == [64 * MIB, 32 * MIB, 0]
    assert torch.cuda.max_memory_allocated(0) - start == 64 * MIB
    journal.close()
    natively.close()
    assert torch.cuda.max_memory_allocated(0) - start == 64 * MIB


@pytest.mark.gpu
def test_it_takes_less_time_than_python_on_a_card(card: None, capsys: pytest.CaptureFixture[str]) -> None:
    readers = {"native": CudaStatistics(), "Python": through_python()}
    recorders = {name: CudaRecorder(CARD, reader) for name, reader in readers.items()}

    def microseconds(name: str, before: Callable[[], Any]) -> float:
        found = []
        for _ in range(2000):
            before()
            start = time.perf_counter_ns()
            recorders[name].read_and_reset_peaks()
            found.append(time.perf_counter_ns() - start)
        return statistics.median(found) / 1000

    # The other reader gets each peak, which is part of the cost of a reset.
    peak = partial(torch.empty, 512, dtype=torch.uint8, device="cuda:0")
    rested = {name: microseconds(name, lambda: None) for name in recorders}
    risen = {name: microseconds(name, peak) for name in recorders}
    with capsys.disabled():
        for name in recorders:
            print(f"\na boundary, {name}: {rested[name]:.1f} µs; {risen[name]:.1f} µs with a reset of peaks", end="")
    assert rested["native"] < rested["Python"]
    assert risen["native"] < risen["Python"]
    for reader in readers.values():
        reader.close()
