"""A model of CUDA's caching allocator, with the functions of ``torch._C`` that its statistics are read through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cudamem_testing import torch_api
from cudamem_testing.model.counters import Counters
from cudamem_testing.recorders import cuda
from cudamem_testing.recorders.cuda import PEAKED
from cudamem_testing.recorders.peaks import Levels, Slot, peaks_of
from cudamem_testing.recorders.stats_patches import counts

BLOCK, SMALL, SEGMENT = 512, 2**20, 2**21
BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes")
COUNTED = ("allocation", "segment", "active", "inactive_split")
FUNCTIONS = {
    "_cuda_memoryStats": "statistics",
    "_accelerator_getDeviceStats": "statistics",
    "_cuda_resetPeakMemoryStats": "reset_peaks",
    "_accelerator_resetPeakStats": "reset_peaks",
    "_cuda_resetAccumulatedMemoryStats": "reset_counts",
    "_accelerator_resetAccumulatedStats": "reset_counts",
}


class Allocator:
    """Cards with blocks rounded to 512 bytes in two pools, cut from segments that stay until the cache is emptied."""

    def __init__(self, cards: int = 1) -> None:
        self.initialized = True
        self.cards = [Card() for _ in range(cards)]
        self.fractions = [1.0] * cards
        self.total = 2**36
        self.bindings = SimpleNamespace(
            _cuda_setMemoryFraction=self.set_fraction, _cuda_getMemoryFraction=self.get_fraction
        )
        for name, method in FUNCTIONS.items():
            setattr(self.bindings, name, getattr(self, method))

    def statistics(self, index: int) -> dict[str, Any]:
        return self._card(index).statistics()

    def reset_peaks(self, index: int) -> None:
        self._card(index).reset_peaks()

    def reset_counts(self, index: int) -> None:
        card = self._card(index)
        card.retries = 0
        for stat in card.stats.values():
            stat["allocated"] = stat["freed"] = 0

    def set_fraction(self, fraction: float, index: int) -> None:
        self.fractions[index] = fraction
        self.cards[index].most = int(fraction * self.total)

    def get_fraction(self, index: int) -> float:
        """Computed from whole bytes: what was set need not come back."""
        most = self.cards[index].most
        return 1.0 if most is None else most / self.total

    def empty_cache(self) -> None:
        for card in self.cards:
            card.empty_cache()

    def _card(self, index: int) -> Card:
        if not self.initialized or not 0 <= index < len(self.cards):
            raise RuntimeError(f"Invalid device argument {index}: did you call init?")
        return self.cards[index]

    def native_card(self, index: int) -> NativeCard:
        """What the native library would read of a card."""
        return NativeCard(self._card(index))

    @contextmanager
    def in_place(self, *, native: bool = False) -> Iterator[None]:
        """The package takes this allocator for torch's; with ``native`` the native library reads it."""
        ours = {
            "bindings": lambda: self.bindings,
            "cuda_initialized": lambda: self.initialized,
            "cuda_device_count": lambda: len(self.cards),
            "total_memory": lambda index: self.total,
            "empty_cache": self.empty_cache,
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda, "native_card", self.native_card if native else lambda index: None)
            for home in (torch_api, torch_api.cuda, torch_api.history):  # functions call those of their own module
                for name in ours.keys() & vars(home).keys():
                    patch.setattr(home, name, ours[name])
            yield


class NativeCard:
    """What the native library does, on the model: ``test_native_device`` holds the library to the same."""

    source = None

    def __init__(self, card: Card) -> None:
        self._card = card
        self._told: dict[Slot, int] = {}
        self._last: Counters | None = None  # what was read alone, where no peak was above it

    def forget(self) -> None:
        self._told.clear()

    def set_alone(self, alone: bool) -> None:
        """Its readings at boundaries are not modelled."""

    def read_alone(self) -> Counters | None:
        last, self._last = self._last, None
        found, peaks, rests = self._now()
        if rests:
            self._last = found = last if last == found else found
        elif self._news(peaks):
            return None
        else:
            self._card.reset_peaks()
        return found

    def read(self, *, every: bool = False) -> tuple[Counters, Levels] | None:
        self._last = None
        found, peaks, rests = self._now()
        if rests:
            return found, {}
        self._card.reset_peaks()
        news = self._news(peaks)
        self._told |= news
        return found, peaks if news or every else {}

    def _news(self, peaks: Levels) -> dict[Slot, int]:
        """The peaks that are higher than reported."""
        return {place: level for place, level in peaks.items() if level > self._told.get(place, 0)}

    def _now(self) -> tuple[Counters, Levels, bool]:
        """The counters, all peaks, and whether none is above the current level."""
        stats = self._card.statistics()
        sizes = [stats[name]["all"][field] for name in PEAKED for field in ("current", "peak")]
        found = Counters(*sizes, *counts(stats), stats["allocation"]["all"]["current"])
        return found, peaks_of(stats), sizes[::2] == sizes[1::2]


class Card:
    """One device."""

    def __init__(self) -> None:
        self.stats: dict[Slot, dict[str, int]] = {}
        for name in (*BYTES, *COUNTED):
            for pool in ("all", "small_pool", "large_pool"):
                self.stats[name, pool] = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
        for name in ("oversize_allocations", "oversize_segments"):
            self.stats[name,] = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
        self.blocks: list[int] = []
        self.retries = 0
        self.most: int | None = None

    def statistics(self) -> dict[str, Any]:
        found: dict[str, Any] = {"num_alloc_retries": self.retries, "num_ooms": 0, "max_split_size": -1}
        for (name, *pool), stat in self.stats.items():
            if pool:
                found.setdefault(name, {})[pool[0]] = dict(stat)
            else:
                found[name] = dict(stat)
        return found

    def reset_peaks(self) -> None:
        for stat in self.stats.values():
            stat["peak"] = stat["current"]

    def now(self, name: str) -> int:
        return self.stats[name, "all"]["current"]

    def allocate(self, size: int) -> None:
        taken = -(-size // BLOCK) * BLOCK
        missing = self.now("allocated_bytes") + taken - self.now("reserved_bytes")
        segment = -(-max(missing, 0) // SEGMENT) * SEGMENT
        if self.most is not None and segment and self.now("reserved_bytes") + segment > self.most:
            raise MemoryError(f"{self.now('reserved_bytes') + segment} is more than {self.most}")
        self._change("reserved_bytes", segment, size)
        self._change("segment", 1 if segment else 0, size)
        self._block(size, 1)
        self.blocks.append(size)

    def free(self, place: int) -> None:
        self._block(self.blocks.pop(place), -1)

    def empty_cache(self) -> None:
        idle = (self.now("reserved_bytes") - self.now("allocated_bytes")) // SEGMENT * SEGMENT
        for pool, size in (("large_pool", SMALL + 1), ("small_pool", SMALL)):
            part = min(idle, self.stats["reserved_bytes", pool]["current"])
            self._change("reserved_bytes", -part, size)
            idle -= part

    def _block(self, size: int, sign: int) -> None:
        taken = -(-size // BLOCK) * BLOCK
        for name in ("allocated_bytes", "active_bytes"):
            self._change(name, sign * taken, size)
        self._change("requested_bytes", sign * size, size)
        for name in ("allocation", "active"):
            self._change(name, sign, size)
        if size > 4 * SEGMENT:
            self._one(("oversize_allocations",), sign)

    def _change(self, name: str, by: int, size: int) -> None:
        for pool in ("all", "small_pool" if size <= SMALL else "large_pool"):
            self._one((name, pool), by)

    def _one(self, place: Slot, by: int) -> None:
        stat = self.stats[place]
        stat["current"] += by
        stat["allocated" if by > 0 else "freed"] += abs(by)
        stat["peak"] = max(stat["peak"], stat["current"])
