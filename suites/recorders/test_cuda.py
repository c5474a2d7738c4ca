"""CUDA's statistics with two views: no window loses a peak, and the test sees its own peaks as if not measured."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from cudamem_testing import torch_api
from cudamem_testing.guards import stand_in
from cudamem_testing.model.counters import ZERO, Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders import cuda
from cudamem_testing.recorders.cuda import CudaRecorder, CudaStatistics
from cudamem_testing.recorders.peaks import Slot
from cudamem_testing.windows.memory import Memory
from suites.recorders.allocator import FUNCTIONS, SEGMENT, Allocator
from suites.recorders.readers import NOTICED, Step, programs, run

MIB = 2**20
CARD = Device("cuda", 0)


@pytest.fixture(params=[False, True], ids=["python", "native"])
def allocator(request: pytest.FixtureRequest) -> Iterator[Allocator]:
    allocator = Allocator(cards=2)
    with allocator.in_place(native=request.param):
        yield allocator


@pytest.fixture
def statistics(allocator: Allocator) -> Iterator[CudaStatistics]:
    statistics = CudaStatistics()
    yield statistics
    statistics.close()


# -- one card ---------------------------------------------------------------------------------------------


def test_counters(allocator: Allocator, statistics: CudaStatistics) -> None:
    card, recorder = allocator.cards[0], CudaRecorder(CARD, statistics)
    card.allocate(100)
    card.allocate(3 * MIB)
    card.free(1)
    card.retries = 2
    assert recorder.read_and_reset_peaks() == Counters(
        allocated=512,
        allocated_peak=3 * MIB + 512,
        requested=100,
        requested_peak=3 * MIB + 100,
        reserved=2 * SEGMENT,
        reserved_peak=2 * SEGMENT,
        active=512,
        active_peak=3 * MIB + 512,
        allocations=2,
        segments=2,
        retries=2,
        blocks=1,
    )
    again = recorder.read_and_reset_peaks()
    assert (again.allocated_peak, again.requested_peak, again.reserved_peak) == (512, 100, 2 * SEGMENT)
    assert recorder.incomplete is None


def test_each_card_has_peaks_of_its_own(allocator: Allocator, statistics: CudaStatistics) -> None:
    first, second = (CudaRecorder(Device("cuda", index), statistics) for index in range(2))
    allocator.cards[1].allocate(1024)
    allocator.cards[1].free(0)
    assert first.read_and_reset_peaks().allocated_peak == 0
    assert (second.read_and_reset_peaks().allocated_peak, second.read_and_reset_peaks().allocated_peak) == (1024, 0)


def test_zeros_before_cuda_is_initialised(allocator: Allocator, statistics: CudaStatistics) -> None:
    allocator.initialized = False
    assert CudaRecorder(CARD, statistics).read_and_reset_peaks() == ZERO
    allocator.initialized = True
    allocator.cards[0].allocate(512)
    assert CudaRecorder(CARD, statistics).read_and_reset_peaks().allocated_peak == 512


def test_cuda_malloc_async_knows_allocated_and_reserved_only(allocator: Allocator, statistics: CudaStatistics) -> None:
    recorder = CudaRecorder(CARD, statistics, "cudaMallocAsync")
    allocator.cards[0].allocate(512)
    allocator.cards[0].allocate(512)
    allocator.cards[0].free(0)
    assert recorder.read_and_reset_peaks() == Counters(
        allocated=512,
        allocated_peak=1024,
        reserved=SEGMENT,
        reserved_peak=SEGMENT,
        notes=("allocator cudaMallocAsync counts allocated and reserved bytes only",),
    )


def test_missing_counters_are_unknown(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    def older(index: int) -> dict[str, Any]:
        stats = allocator.statistics(index)
        del stats["requested_bytes"], stats["num_alloc_retries"]
        return stats

    monkeypatch.setattr(cuda, "native_card", lambda index: None)
    monkeypatch.setattr(allocator.bindings, "_cuda_memoryStats", older)
    statistics = CudaStatistics()
    allocator.cards[0].allocate(512)
    assert CudaRecorder(CARD, statistics).read_and_reset_peaks() == Counters(
        allocated=512,
        allocated_peak=512,
        reserved=SEGMENT,
        reserved_peak=SEGMENT,
        notes=("this torch does not count requested_bytes, num_alloc_retries",),
    )
    statistics.close()


def test_an_allocator_without_statistics_is_unknown(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(index: int) -> dict[str, Any]:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.\nIf you need it ...")

    monkeypatch.setattr(allocator.bindings, "_cuda_memoryStats", none)
    statistics = CudaStatistics()
    assert CudaRecorder(CARD, statistics, "pluggable").read_and_reset_peaks() == Counters(
        notes=("the allocator has no statistics: CUDAPluggableAllocator does not yet support getDeviceStats.",)
    )
    statistics.close()


# -- hard limits ------------------------------------------------------------------------------------------


def test_a_limit_counts_from_the_current_level_and_is_lifted(allocator: Allocator, statistics: CudaStatistics) -> None:
    card, recorder = allocator.cards[0], CudaRecorder(CARD, statistics)
    card.allocate(2 * SEGMENT)
    card.allocate(SEGMENT)
    card.free(1)  # a cached segment, which the limit must not leave to the test
    lift = recorder.limit(SEGMENT)
    card.allocate(SEGMENT)  # exactly at the limit
    with pytest.raises(MemoryError):
        card.allocate(1)
    lift()
    assert allocator.fractions == [1.0, 1.0]
    card.allocate(SEGMENT)


@given(size=st.integers(0, 2**36), total=st.integers(2**30, 2**38))
@example(size=31457280, total=84987740160)  # a fraction of a byte too little without care
def test_a_limit_is_exact_for_every_size_of_card(size: int, total: int) -> None:
    allocator = Allocator()
    allocator.total = total
    with allocator.in_place():
        statistics = CudaStatistics()
        CudaRecorder(CARD, statistics).limit(size)
        statistics.close()
    assert allocator.cards[0].most == min(size, total)


@given(total=st.integers(2**30, 2**38), outer=st.integers(0, 2**29), fraction=st.floats(0.75, 1.0))
@example(total=84987740160, outer=67108864, fraction=1.0)  # a byte less with each limit that ends, without care
def test_limits_nest(total: int, outer: int, fraction: float) -> None:
    allocator = Allocator()
    allocator.total = total
    card = allocator.cards[0]
    with allocator.in_place():
        statistics = CudaStatistics()
        recorder = CudaRecorder(CARD, statistics)
        allocator.set_fraction(fraction, 0)
        before = card.most
        lifts = [recorder.limit(outer), recorder.limit(2 * outer)]
        assert card.most == outer  # an inner limit never loosens the outer one
        lifts.append(recorder.limit(outer // 2))
        assert card.most == outer // 2
        for expected in (outer, outer, before):
            lifts.pop()()
            assert card.most == expected
        lifts = [recorder.limit(size) for size in (outer, outer // 2, 2 * outer)]
        for expected in (outer // 2, min(2 * outer, before), before):  # in another order than they began
            lifts.pop(0)()
            assert card.most == expected
        statistics.close()


@pytest.mark.parametrize("answer", ["missing", "refused"])
def test_without_a_getter_the_limit_resets_to_the_whole_card(
    allocator: Allocator, statistics: CudaStatistics, answer: str
) -> None:
    def refuse(index: int) -> float:
        raise RuntimeError("cudaMallocAsync does not yet support getMemoryFraction")

    if answer == "missing":
        del allocator.bindings._cuda_getMemoryFraction
    else:
        allocator.bindings._cuda_getMemoryFraction = refuse
    recorder = CudaRecorder(CARD, statistics)
    recorder.limit(SEGMENT)()
    assert allocator.fractions == [1.0, 1.0]


def test_a_torch_that_cannot_limit_says_so(allocator: Allocator, statistics: CudaStatistics) -> None:
    del allocator.bindings._cuda_setMemoryFraction
    with pytest.raises(RuntimeError) as caught:
        CudaRecorder(CARD, statistics).limit(1)
    assert str(caught.value) == (
        "this build of torch cannot limit CUDA memory (torch._C._cuda_setMemoryFraction is missing)"
    )


# -- every spelling of torch's own API --------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["python", "native"])
def through_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Allocator:
    """The model stands behind torch's own Python functions."""
    allocator = Allocator()
    for name in FUNCTIONS:
        monkeypatch.setattr(torch._C, name, getattr(allocator.bindings, name), raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_isAllocatorInitialized", lambda: True, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(torch_api, "cuda_initialized", lambda: True)
    monkeypatch.setattr(cuda, "native_card", allocator.native_card if request.param else lambda index: None)
    return allocator


def deprecated(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return function(*args)

    return call


def spellings(*names: str) -> list[Callable[..., Any]]:
    """Functions of torch, bound before anything is patched, as ``from torch.cuda import ...`` does."""
    found = []
    for name in names:
        module, _, function = name.rpartition(".")
        owner: Any = torch
        for part in module.split(".")[1:]:
            owner = getattr(owner, part, None)
        if owner is not None and hasattr(owner, function):  # torch.accelerator has them from 2.9 on
            found.append(pytest.param(getattr(owner, function), id=name))
    return found


RESETS = spellings(
    "torch.cuda.reset_peak_memory_stats",
    "torch.cuda.memory.reset_peak_memory_stats",
    "torch.accelerator.reset_peak_memory_stats",
    "torch.accelerator.memory.reset_peak_memory_stats",
    "torch.cuda.reset_max_memory_allocated",
    "torch.cuda.reset_max_memory_cached",
)
READS = spellings(
    "torch.cuda.max_memory_allocated",
    "torch.cuda.memory.max_memory_allocated",
    "torch.accelerator.max_memory_allocated",
)


@pytest.mark.parametrize("reset", RESETS)
def test_a_reset_in_any_spelling_takes_no_peak_from_us(through_torch: Allocator, reset: Callable[..., Any]) -> None:
    statistics = CudaStatistics()
    recorder, card = CudaRecorder(CARD, statistics), through_torch.cards[0]
    recorder.read_and_reset_peaks()
    card.allocate(4096)
    card.free(0)
    deprecated(reset)(0)
    card.allocate(1024)
    assert torch.cuda.max_memory_allocated(0) == 1024  # the test's own reset took effect
    assert recorder.read_and_reset_peaks().allocated_peak == 4096
    statistics.close()


@pytest.mark.parametrize("read", READS)
def test_a_read_in_any_spelling_sees_no_reset_of_ours(through_torch: Allocator, read: Callable[..., Any]) -> None:
    statistics = CudaStatistics()
    recorder, card = CudaRecorder(CARD, statistics), through_torch.cards[0]
    card.allocate(4096)
    card.free(0)
    recorder.read_and_reset_peaks()
    card.allocate(1024)
    assert read(0) == 4096
    assert torch.cuda.memory_stats(0)["allocated_bytes.all.peak"] == 4096
    assert torch.cuda.memory_stats(0)["allocated_bytes.small_pool.peak"] == 4096
    assert "4096 B" in torch.cuda.memory_summary(0)
    assert recorder.read_and_reset_peaks().allocated_peak == 1024
    statistics.close()


@pytest.mark.parametrize(
    "reset", spellings("torch.cuda.reset_accumulated_memory_stats", "torch.accelerator.reset_accumulated_memory_stats")
)
def test_counts_go_on_when_the_test_resets_them(through_torch: Allocator, reset: Callable[..., Any]) -> None:
    statistics = CudaStatistics()
    recorder, card = CudaRecorder(CARD, statistics), through_torch.cards[0]
    card.allocate(1)
    card.retries = 3
    reset(0)
    card.allocate(1)
    card.retries = 1
    assert torch.cuda.memory_stats(0)["allocation.all.allocated"] == 1
    found = recorder.read_and_reset_peaks()
    assert (found.allocations, found.segments, found.retries, found.blocks) == (2, 1, 4, 2)
    reset(0)
    assert recorder.read_and_reset_peaks().allocations == 2
    statistics.close()


def test_closing_restores_torchs_own_functions(allocator: Allocator) -> None:
    before = dict(vars(allocator.bindings))
    first, second = CudaStatistics(), CudaStatistics()
    assert all(vars(allocator.bindings)[name] is not before[name] for name in FUNCTIONS)
    first.close()
    first.close()
    assert vars(allocator.bindings)["_cuda_memoryStats"] is not before["_cuda_memoryStats"]
    second.close()
    assert vars(allocator.bindings) == before
    with pytest.raises(RuntimeError, match="these CUDA statistics were closed"):
        second.read(0)


def test_hidden_peaks_are_reported_after_the_last_reader(allocator: Allocator) -> None:
    before = dict(vars(allocator.bindings))
    statistics, card = CudaStatistics(), allocator.cards[0]
    card.allocate(4096)
    card.free(0)
    statistics.read(0)
    statistics.close()
    assert allocator.bindings._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 4096
    assert vars(allocator.bindings) != before
    again = CudaStatistics()
    card.allocate(1024)
    again.close()
    assert allocator.bindings._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 4096
    allocator.bindings._cuda_resetPeakMemoryStats(0)
    assert allocator.bindings._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 1024
    assert vars(allocator.bindings) == before


def test_a_card_that_is_gone_hides_nothing(allocator: Allocator) -> None:
    before = dict(vars(allocator.bindings))
    statistics, card = CudaStatistics(), allocator.cards[0]
    card.allocate(4096)
    card.free(0)
    statistics.read(0)
    allocator.initialized = False
    statistics.close()
    assert vars(allocator.bindings) == before


def test_older_torch_without_the_accelerator_functions(allocator: Allocator) -> None:
    for name in [name for name in FUNCTIONS if name.startswith("_accelerator")]:
        delattr(allocator.bindings, name)
    before = dict(vars(allocator.bindings))
    statistics = CudaStatistics()
    allocator.cards[0].allocate(512)
    assert CudaRecorder(CARD, statistics).read_and_reset_peaks().allocated == 512
    statistics.close()
    assert vars(allocator.bindings) == before


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "eset" in name])
def test_a_call_that_torch_refuses_is_refused_by_torch(
    allocator: Allocator, statistics: CudaStatistics, name: str
) -> None:
    with pytest.raises(RuntimeError, match=r"^Invalid device argument 7: did you call init\?$"):
        getattr(allocator.bindings, name)(7)
    allocator.initialized = False
    with pytest.raises(RuntimeError, match=r"^Invalid device argument 0: did you call init\?$"):
        getattr(allocator.bindings, name)(0)


def test_a_foreign_wrapper_keeps_working_after_us(allocator: Allocator) -> None:
    calls = []
    statistics = CudaStatistics()
    ours = allocator.bindings._cuda_resetPeakMemoryStats

    def theirs(index: int) -> None:
        calls.append(index)
        ours(index)

    allocator.bindings._cuda_resetPeakMemoryStats = theirs
    statistics.close()
    card = allocator.cards[0]
    card.allocate(512)
    card.free(0)
    allocator.bindings._cuda_resetPeakMemoryStats(0)
    assert calls == [0]
    assert card.statistics()["allocated_bytes"]["all"]["peak"] == 0


def test_an_idle_reader_gets_the_highest_of_many_peaks(allocator: Allocator) -> None:
    readers = [CudaStatistics(), CudaStatistics()]
    card = allocator.cards[0]
    for number in range(300):
        card.allocate(512 * (1 + number % 7))
        card.free(0)
        readers[0].read(0)
        if number % 3 == 0:
            allocator.bindings._cuda_resetPeakMemoryStats(0)
    views = readers[0]._views
    assert views is not None
    assert [len(one._highest) for one in views.hidden.values()] == [29]  # numbers, however many boundaries there were
    stats, _ = readers[1].read(0)
    assert stats["allocated_bytes"]["all"]["peak"] == 512 * 7
    for reader in readers:
        reader.close()


# -- against an oracle ------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", NOTICED.values(), ids=NOTICED)
def test_a_reader_alone_notices(program: list[Step]) -> None:
    run(program, Allocator(cards=2), (True, True, True))


def test_peaks_that_other_code_resets_are_noticed() -> None:
    allocator = Allocator()
    with allocator.in_place(native=True):
        statistics, card = CudaStatistics(), allocator.cards[0]
        recorder, others = CudaRecorder(CARD, statistics), dict[Slot, int]()

        def peak() -> int:
            card.allocate(512)
            card.free(0)
            return recorder.read_and_reset_peaks().allocated_peak or 0

        assert [peak(), peak()] == [512, 512]
        pay = statistics.owe(0, lambda: others)
        for size in (4096, 1024, 2048):
            others["allocated_bytes", "all"] = size
            assert peak() == size
        pay()
        others["allocated_bytes", "all"] = 8192
        assert [peak(), peak()] == [2048, 512]
        statistics.close()


def test_a_closed_reader_resets_nothing() -> None:
    allocator = Allocator()
    with allocator.in_place(native=True):
        statistics = CudaStatistics()
        recorder, card = CudaRecorder(CARD, statistics), allocator.cards[0]
        for _ in range(2):
            card.allocate(4096)
            card.free(0)
            assert recorder.read_and_reset_peaks().allocated_peak == 4096
        card.allocate(4096)
        card.free(0)
        statistics.close()
        assert recorder.read_and_reset_peaks().allocated is None
        assert card.statistics()["allocated_bytes"]["all"]["peak"] == 4096


@given(programs(), st.tuples(*[st.booleans()] * 3))
def test_readers_and_the_test_see_what_each_would_see_alone(program: list[Step], natively: tuple[bool, ...]) -> None:
    run(program, Allocator(cards=2), natively)


# -- a real card ------------------------------------------------------------------------------------------

LARGE = 20 * MIB  # its segment has exactly its size


@pytest.fixture
def memory() -> Iterator[Memory]:
    """A card without garbage and without cached segments, whose remainders would be counted as allocated."""
    torch.ones(1, device="cuda")
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(0)
    with Memory.on("cuda:0") as memory:
        yield memory


def take(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda:0")


def room() -> int:
    """Bytes that are free beside blocks of earlier tests: a larger block needs a new segment."""
    return torch.cuda.memory_reserved(0) - torch.cuda.memory_allocated(0)


@pytest.mark.gpu
def test_a_window_is_exact_to_the_byte(memory: Memory) -> None:
    before = torch.cuda.memory_stats(0)
    with memory.window("exact") as window:
        kept = take(1000)
        temporary = take(LARGE)
        del temporary
        second = take(LARGE)
        del second
    found = window[0]
    assert found.start == before["allocated_bytes.all.current"]
    assert found.reserved_start == before["reserved_bytes.all.current"]
    assert (found.peak_growth, found.requested_growth) == (LARGE + 1024, LARGE + 1000)
    assert (found.retained, found.allocations, found.retries) == (1024, 3, 0)
    after = torch.cuda.memory_stats(0)  # each block may have fitted beside others that were there
    assert found.reserved_peak == after["reserved_bytes.all.peak"]
    assert found.segments == after["segment.all.allocated"] - before["segment.all.allocated"]
    assert found.reserved_growth in (0, SEGMENT, LARGE, LARGE + SEGMENT)
    assert (found.complete, found.notes) == (True, ())
    with memory.window("freed") as freed:
        del kept
    assert (freed.retained, freed.peak_growth) == (-1024, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("reset", RESETS)
def test_a_reset_inside_a_window_on_a_card(memory: Memory, reset: Callable[..., Any]) -> None:
    with memory.window("reset") as window:
        temporary = take(LARGE)
        del temporary
        deprecated(reset)(0)
        small = take(512)
        seen = torch.cuda.max_memory_allocated(0)
    assert window.peak_growth == LARGE
    assert seen == window.end
    del small


@pytest.mark.gpu
@pytest.mark.parametrize("read", READS)
def test_the_test_keeps_its_own_peak_on_a_card(memory: Memory, read: Callable[..., Any]) -> None:
    start = torch.cuda.memory_allocated(0)
    temporary = take(LARGE)
    del temporary
    for _ in range(3):
        with memory.window("ours"):
            take(512)
    assert read(0) == start + LARGE
    with Memory.on("cuda:0") as inner, inner.window("inner"):
        assert read(0) == start + LARGE
    assert read(0) == start + LARGE
    torch.cuda.reset_peak_memory_stats(0)
    assert read(0) == start


@pytest.mark.gpu
def test_nested_windows_and_sessions_on_a_card(memory: Memory) -> None:
    with memory.window("outer") as outer:
        with Memory.on("cuda:0") as session, session.window("theirs") as theirs:
            temporary = take(LARGE)
            del temporary
        with memory.window("inner") as inner:
            kept = take(1024)
    assert (outer.peak_growth, outer.retained) == (LARGE, 1024)
    assert (theirs.peak_growth, theirs.retained) == (LARGE, 0)
    assert (inner.peak_growth, inner.retained) == (1024, 1024)
    del kept


@pytest.mark.gpu
def test_every_stream_counts(memory: Memory) -> None:
    side = torch.cuda.Stream()
    with memory.window("streams") as window:
        with torch.cuda.stream(side):
            one = take(LARGE)
        other = take(LARGE)
        one.record_stream(torch.cuda.current_stream())
        del one
        torch.cuda.synchronize()
    assert window.peak_growth == 2 * LARGE
    assert window.retained == LARGE
    del other


@pytest.mark.gpu
def test_functions_of_torch_are_back_after_measuring_a_card() -> None:
    torch.ones(1, device="cuda")
    torch.cuda.reset_peak_memory_stats(0)
    before = {name: getattr(torch._C, name) for name in FUNCTIONS if hasattr(torch._C, name)}
    if any(map(stand_in, before.values())):
        pytest.skip("a session around this test has replaced them, and keeps them")
    with Memory.on("cuda:0"):
        assert all(getattr(torch._C, name) is not function for name, function in before.items())
    assert {name: getattr(torch._C, name) for name in before} == before
    with Memory.on("cuda:0") as memory, memory.window("hides a peak"):
        take(LARGE)
    torch.cuda.reset_peak_memory_stats(0)
    assert {name: getattr(torch._C, name) for name in before} == before


@pytest.mark.gpu
def test_a_limit_on_a_card_raises_and_is_lifted(memory: Memory) -> None:
    before, free = torch_api.memory_fraction(0), room()
    with memory.limit("64MiB"):
        exactly = take(64 * MIB)
        del exactly
    with pytest.raises(torch.OutOfMemoryError), memory.limit("64MiB"):
        take(66 * MIB + free)
    assert torch_api.memory_fraction(0) == before
    assert take(66 * MIB).numel() == 66 * MIB


@pytest.mark.gpu
def test_limits_on_a_card_nest(memory: Memory) -> None:
    free = room()
    with memory.limit("64MiB"):
        with memory.limit("1GiB"), pytest.raises(torch.OutOfMemoryError):
            take(66 * MIB + free)
        with memory.limit("20MiB"):
            exactly = take(LARGE)
            del exactly
            with pytest.raises(torch.OutOfMemoryError):
                take(LARGE + 2 * MIB + free)
        torch.cuda.empty_cache()
        exactly = take(64 * MIB)
        del exactly
    assert take(66 * MIB).numel() == 66 * MIB


def python(script: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.gpu
@pytest.mark.subprocess
def test_cuda_malloc_async_on_a_card() -> None:
    configuration = "backend:cudaMallocAsync"
    found = python(
        """
import torch
from cudamem_testing import Memory
with Memory.on("cuda:0") as memory:
    with memory.window("async") as window:
        kept = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
        temporary = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
        del temporary
        torch.cuda.synchronize()
    found = window[0]
    print(found.start, found.peak, found.retained, found.reserved_peak >= found.peak)
    print(found.requested_peak, found.allocations, found.segments, found.retries, found.notes[0])
    with memory.limit("128MiB"):
        pass
    torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
print("done")
""",
        PYTORCH_ALLOC_CONF=configuration,
        PYTORCH_CUDA_ALLOC_CONF=configuration,
    )
    assert found.splitlines() == [
        f"0 {128 * MIB} {64 * MIB} True",
        "None None None None allocator cudaMallocAsync counts allocated and reserved bytes only",
        "done",
    ]


@pytest.mark.gpu
@pytest.mark.subprocess
def test_reading_initialises_nothing_and_forks_can_use_the_card() -> None:
    found = python(
        """
import os
import torch
from cudamem_testing import Memory
from cudamem_testing.recorders.cards import visible_names
from cudamem_testing.report.doctor import examine
visible_names()
examine()
with Memory.on("all") as memory:
    with memory.window("nothing") as window:
        torch.ones(10)
    print(window[0].start, window[0].peak, memory.statistics(0).allocated, torch.cuda.memory_stats())
print(torch.cuda.is_initialized())
child = os.fork()
if not child:
    try:
        status = int(torch.ones(3, device="cuda").sum().item()) - 3
    except BaseException:
        status = 1
    os._exit(status)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert found.splitlines() == ["0 0 0 OrderedDict()", "False", "0"]


@pytest.mark.gpu(count=2)
def test_the_second_card_is_measured_too() -> None:
    for index in range(2):
        torch.ones(1, device=f"cuda:{index}")
    with Memory.on("cuda") as memory, memory.window("both") as window:
        kept = torch.empty(1024, dtype=torch.uint8, device="cuda:1")
    assert [found.retained for found in window.windows[:2]] == [0, 1024]
    del kept
