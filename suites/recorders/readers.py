"""Random programs of a test and of those who read a card's statistics, against what each would see alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

from hypothesis import strategies as st

from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.cuda import CudaRecorder, CudaStatistics
from cudamem_testing.recorders.native_journal import Note
from suites.recorders.allocator import FUNCTIONS, Allocator

MIB = 2**20
Step = tuple[str, int, Any]
_INDEX = st.integers(0, 1)
_READER = st.integers(0, 2)
_STEP = st.one_of(
    st.tuples(st.just("allocate"), _INDEX, st.sampled_from([1, 512, 5000, MIB, 3 * MIB, 9 * MIB])),
    st.tuples(st.just("allocate"), _INDEX, st.sampled_from([600, 2 * MIB])),
    st.tuples(st.just("free"), _INDEX, st.integers(0, 3)),
    st.tuples(st.just("empty cache"), st.just(0), st.just(0)),
    st.tuples(st.just("user"), _INDEX, st.sampled_from(sorted(FUNCTIONS))),
    st.tuples(st.just("boundary"), _INDEX, _READER),
    st.tuples(st.just("boundary"), _INDEX, st.just(0)),
    st.tuples(st.just("note"), st.just(0), st.just(0)),
    st.tuples(st.just("close"), st.just(0), _READER),
    st.tuples(st.just("open"), st.just(0), _READER),
)
_PEAKED = ("allocated_bytes", "requested_bytes", "reserved_bytes", "active_bytes")
_PASSING: list[Step] = [("allocate", 0, 5000), ("free", 0, 0)]
_READ: list[Step] = [("boundary", 0, 0)]
#: What a reader that was alone until then must notice.
NOTICED: dict[str, list[Step]] = {
    "another reader comes": [
        *(*_PASSING, *_READ, *_READ, ("open", 0, 1), ("boundary", 0, 1)),
        *(*_PASSING, *_READ, ("boundary", 0, 1), *_PASSING, *_READ, ("boundary", 0, 1)),
    ],
    "another reader goes": [
        *(("open", 0, 1), ("boundary", 0, 1), *_READ, *_PASSING, ("boundary", 0, 1), ("close", 0, 1)),
        *(*_READ, *_PASSING, *_READ, *_READ),
    ],
    "the test resets peaks": [
        *(*_PASSING, *_READ, *_READ, *_PASSING, ("user", 0, "_cuda_resetPeakMemoryStats"), *_READ, *_READ),
        *(("allocate", 0, 600), ("free", 0, 0), *_READ, *_PASSING, *_READ),
    ],
    "the test resets counts": [
        *(*_PASSING, *_READ, *_READ, ("user", 0, "_cuda_resetAccumulatedMemoryStats")),
        *(*_READ, *_PASSING, *_READ, *_READ),
    ],
    "a journal notes": [
        *(*_PASSING, ("note", 0, 0), *_READ, *_READ, *_PASSING, ("note", 0, 0), *_READ),
    ],
}


class Notes(Protocol):
    """A journal of the first card."""

    def note(self) -> int: ...
    def notes(self) -> list[Note]: ...
    def close(self) -> None: ...


def programs() -> st.SearchStrategy[list[Step]]:
    """Steps of the test on two cards, boundaries of three readers, notes of a journal."""
    return st.lists(_STEP, min_size=30, max_size=60)


def opened(natively: bool) -> CudaStatistics:
    """A reader, through the native library or through Python."""
    statistics = CudaStatistics()
    if not natively:
        statistics._reader.cards.update(dict.fromkeys(range(2)))
    return statistics


class Highest:
    """What one reader must be told: the highest level of each card since it last read."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self.since = [self._now(index) for index in range(2)]

    def _now(self, index: int) -> tuple[int, ...]:
        return tuple(self._allocator.cards[index].now(name) for name in _PEAKED)

    def look(self) -> None:
        for index, highest in enumerate(self.since):
            self.since[index] = tuple(map(max, highest, self._now(index)))

    def take(self, index: int) -> tuple[int, ...]:
        highest, self.since[index] = self.since[index], self._now(index)
        return highest


def run(
    program: list[Step], allocator: Allocator, natively: tuple[bool, ...], journal: Callable[[], Notes] | None = None
) -> None:
    """Run a program, and assert after each step what everybody sees; each reader reads natively or does not."""
    oracle = Allocator(cards=2)
    with allocator.in_place(native=True), ExitStack() as leaving:
        readers: list[CudaStatistics | None] = [opened(natively[0]), None, None]
        expected = [Highest(allocator) for _ in readers]
        notes, noted = (None if journal is None else journal()), Highest(allocator)
        for one in (*readers[:1], notes):
            if one is not None:
                leaving.callback(one.close)
        fresh = {0: {0, 1}}  # a reader's first read may tell of what was before it
        made = [0, 0]
        offsets = {}  # counts matter as differences: those from before a reader came are not its own
        for action, index, value in program:
            cards = (allocator.cards[index], oracle.cards[index])
            if action == "allocate":
                made[index] += 1
                for card in cards:
                    card.allocate(value)
            elif action == "free":
                for card in cards:
                    if value < len(card.blocks):
                        card.free(value)
            elif action == "empty cache":
                allocator.empty_cache()
                oracle.empty_cache()
            elif action == "user":
                assert getattr(allocator.bindings, value)(index) == getattr(oracle.bindings, value)(index)
            elif action == "note" and notes is not None:
                notes.note()
                assert notes.notes()[-1].peak == noted.take(0)[0]
            elif action == "boundary" and (reader := readers[value]) is not None:
                found = CudaRecorder(Device("cuda", index), reader).read_and_reset_peaks()
                highest = expected[value].take(index)
                peaks = (found.allocated_peak, found.requested_peak, found.reserved_peak, found.active_peak)
                if index in fresh.get(value, ()):
                    fresh[value].discard(index)
                    assert all(peak >= least for peak, least in zip(peaks, highest, strict=True))
                    offsets[value, index] = found.allocations - made[index]
                else:
                    assert peaks == highest
                assert (found.allocated, found.requested, found.reserved, found.active) == expected[value].since[index]
                assert (found.allocations - made[index], found.blocks) == (offsets[value, index], len(cards[0].blocks))
            elif action == "close" and (reader := readers[value]) is not None:
                reader.close()
                readers[value] = None
            elif action == "open" and readers[value] is None:
                readers[value], expected[value] = opened(natively[value]), Highest(allocator)
                leaving.callback(readers[value].close)
                fresh[value] = {0, 1}
            for each in (*expected, noted):
                each.look()
            for number in range(2):
                assert allocator.bindings._cuda_memoryStats(number) == oracle.statistics(number)
