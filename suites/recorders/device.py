"""The model of CUDA's caching allocator with its counters in C++ (``device.cpp``), where the library reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from cudamem_testing.recorders.native import NativeRecorder
from cudamem_testing.recorders.native_device import PLACES, NativeDevice
from cudamem_testing.recorders.peaks import Slot
from suites.recorders.allocator import Allocator, Card

PRIVATE = 20  # of c10::DeviceType


class CppCard(Card):
    """What is allocated, by the model; what is counted of it, in C++."""

    def __init__(self, library: ctypes.PyDLL, index: int) -> None:
        self._library = library
        self._index = index
        super().__init__()

    @property
    def retries(self) -> int:
        return int(self._library.device_statistics(self._index, _numbers()))

    @retries.setter
    def retries(self, number: int) -> None:
        self._library.device_set_retries(self._index, number)

    def statistics(self) -> dict[str, Any]:
        numbers, found = _numbers(), super().statistics()
        found["num_alloc_retries"] = self._library.device_statistics(self._index, numbers)
        values: Iterator[int] = iter(numbers)
        for name, *pool in PLACES:
            stat = found[name][pool[0]] if pool else found[name]
            stat.update({field: next(values) for field in ("current", "peak", "allocated", "freed")})
        return found

    def _one(self, place: Slot, by: int) -> None:
        super()._one(place, by)
        self._library.device_change(self._index, PLACES.index(place), by)


class CppAllocator(Allocator):
    """Two cards."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        super().__init__(cards=2)
        self.library = library
        library.device_forget()
        self.cards: list[Card] = [CppCard(library, index) for index in range(2)]

    def reset_peaks(self, index: int) -> None:
        self._card(index)
        self.library.device_reset_peaks(index)

    def reset_counts(self, index: int) -> None:
        self._card(index)
        self.library.device_reset_counts(index)

    def native_card(self, index: int) -> NativeDevice:
        found = NativeRecorder.load().device(PRIVATE, index)
        assert found is not None
        return found


def load(path: str) -> ctypes.PyDLL:
    """The library of ``device.cpp``, whose allocator is registered from here on."""
    library = ctypes.PyDLL(path)
    library.device_change.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    library.device_statistics.restype = ctypes.c_int64
    library.device_register()
    return library


def _numbers() -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * (4 * len(PLACES)))()
