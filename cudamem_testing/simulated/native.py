"""The native part of the simulated card, through ctypes. Functions keep the interpreter's lock, as those of torch do.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import atexit
import ctypes
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from cudamem_testing.model.allocator_settings import INTERVALS, AllocatorSettings
from cudamem_testing.model.simulated_cards import Cards
from cudamem_testing.recorders.build import Library, RecorderUnavailable, compiled, load
from cudamem_testing.recorders.layout import FramesUnreadable
from cudamem_testing.recorders.native_calls import room
from cudamem_testing.recorders.native_device import COUNTED, POOLS
from cudamem_testing.recorders.native_python import this_python
from cudamem_testing.recorders.native_trap import ARGUMENTS
from cudamem_testing.simulated.snapshot import SnapshotReader
from cudamem_testing.torch_api.backward import backward_code

ENGINE = Library(
    "simulated_card_engine",
    "what adds simulated cards to autograd's engine",
    ("card_engine.cpp",),
    "c++20",
    ("c10", "torch_cpu"),
    Path(__file__).parent,
    "some 12 seconds",
    "-O1",
)
LIBRARY = Library(
    "simulated_card",
    "the simulated card",
    (
        "card_operators.cpp",  # takes longest, so it starts first
        "simulated_card.cpp",
        "card_structured.cpp",
        "../recorders/codes.h",
        "../recorders/cpu_stacks.h",
        "../recorders/trap.h",
        "card_allocator.h",
        "card_arguments.h",
        "card_attend.h",
        "card_attention.h",
        "card_backward.h",
        "card_cudnn.h",
        "card_driver.h",
        "card_fallback.h",
        "card_hooks.h",
        "card_host_kernels.h",
        "card_kernels.h",
        "card_layers.h",
        "card_linalg.h",
        "card_memory.h",
        "card_parts.h",
        "card_recurrent.h",
        "card_rule_table.h",
        "card_rules.h",
        "card_sorting.h",
        "card_stacks.h",
        "card_streams.h",
        "card_structured.h",
        "card_typed.h",
        "card_typed_calls.h",
        "card_versions.h",
    ),
    "c++20",
    ("c10", "torch_cpu"),
    Path(__file__).parent,
    "some 12 seconds on two cores",
    "-O1",
)
VALUES = ("current", "peak", "allocated", "freed")
ONCE = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
STACKS = (None, "state", "alloc", "all")
OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
#: Bytes that cuBLASLt takes for each thread and stream.
LIGHT_WORKSPACE = 2**20
# Made once: ctypes makes a class for each length of an array, and only the garbage collector frees it.
_Stats = ctypes.c_int64 * (len(COUNTED) * len(POOLS) * len(VALUES) + 2 * len(VALUES) + len(ONCE))
_Pinned, _Sizes = ctypes.c_int64 * 18, ctypes.c_int64 * 2


class Setup(ctypes.Structure):
    """As in ``simulated_card.cpp``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("count", "total", "beside", "values", "expandable")),
        *(
            (name, ctypes.c_int64)
            for name in ("max_split", "max_unsplit_rounding", "blas", "light", "processors", "hopper", "ampere")
        ),
        ("collect_above", ctypes.c_double),
        ("divisions", ctypes.c_int64 * INTERVALS),
    )


class NativeCard:
    """The library of this process."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        self._library = library
        self._observers: list[Any] = []

    @classmethod
    def load(cls, progress: Callable[[str], None] | None = None) -> NativeCard:
        """Compile it if it never was, and load it.

        Raises:
            RecorderUnavailable: it cannot be compiled or loaded here.
        """
        if not _of_this_process.cache_info().currsize:
            compiled(progress, LIBRARY)
        return cls(_of_this_process())

    def enter(self, cards: Cards, settings: AllocatorSettings, values: bool) -> bool:
        """Put the cards in place; false if CUDA is available already.

        Raises:
            RecorderUnavailable: this torch cannot have them.
        """
        model = cards.model
        setup = Setup(cards.count, model.memory, model.context, values, settings.expandable)
        setup.max_split, setup.max_unsplit_rounding = settings.max_split, settings.max_unsplit_rounding
        setup.hopper, setup.ampere = model.capability[0] == 9, model.capability[0] >= 8
        setup.blas, setup.light = model.blas_workspace, LIGHT_WORKSPACE
        setup.processors = model.processors
        setup.collect_above = settings.collect_above
        setup.divisions[:] = settings.divisions
        outcome = self._library.cudamem_card_enter(ctypes.byref(setup))
        if outcome < 0:
            raise RecorderUnavailable(f"a card cannot be simulated with this torch: {self.error()}")
        return bool(outcome)

    def leave(self) -> None:
        """Take the cards out again; what is live keeps its memory."""
        self._library.cudamem_card_leave()
        self._observers.clear()

    def add_to_engine(self, cards: int, progress: Callable[[str], None] | None = None) -> None:
        """Give autograd's engine, which ran before there were cards, queues for them.

        Raises:
            RecorderUnavailable: it cannot be compiled or loaded here.
        """
        compiled(progress, ENGINE)
        _engine().cudamem_card_engine(ctypes.c_int64(cards))

    def __getattr__(self, name: str) -> Any:
        """The function ``cudamem_card_NAME`` of the library."""
        function = getattr(self._library, f"cudamem_card_{name}")

        def call(*arguments: Any) -> Any:  # torch's compiler wants functions that can be hashed
            return function(*arguments)

        self.__dict__[name] = call
        return call

    def set_card(self, card: int) -> None:
        """Make a card the current one of this thread.

        Raises:
            RuntimeError: there is no such card.
        """
        if self._library.cudamem_card_set_device(card) < 0:
            raise RuntimeError(self.error())

    def stats(self, card: int) -> dict[str, Any]:
        """The allocator's statistics as torch's function gives them.

        Raises:
            RuntimeError: there is no such card.
        """
        numbers = _Stats()
        if self._library.cudamem_card_stats(card, numbers) < 0:
            raise RuntimeError(self.error())
        each = iter(numbers)
        count = partial(_count, each)
        found: dict[str, Any] = {name: {pool: count() for pool in POOLS} for name in COUNTED}
        found["oversize_allocations"], found["oversize_segments"] = count(), count()
        found.update(zip(ONCE, each, strict=True))
        return found

    def pinned(self) -> dict[str, Any]:
        """Statistics of pinned memory."""
        numbers = _Pinned()
        self._library.cudamem_card_pinned(numbers)
        names = ("active_requests", "active_bytes", "allocations", "allocated_bytes")
        each = iter(numbers)
        found: dict[str, Any] = {name: _count(each) for name in names}
        times = ("count", "max", "min", "total", "avg")
        found |= {f"host_{name}_time": dict.fromkeys(times, 0) for name in ("alloc", "free")}
        return {**found, "num_host_alloc": next(each), "num_host_free": next(each)}

    def take(self, card: int, size: int, stream: int) -> int:
        """The address of a block that is taken without a tensor.

        Raises:
            RuntimeError: there is no room; the message is torch's.
        """
        at = ctypes.c_int64()
        if self._library.cudamem_card_take(card, size, stream, ctypes.byref(at)) < 0:
            raise RuntimeError(self.error())
        return at.value

    def observe(self, observer: Callable[[int, int, int, int], None]) -> None:
        """Have an observer called before an out-of-memory error."""
        function = OBSERVER(observer)
        self._observers.append(function)
        self._library.cudamem_card_observe(function)

    def snapshot(self, cards: int, events: bool) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
        """Segments of all cards, and the events of each."""
        sizes = _Sizes()
        if self._library.cudamem_card_snapshot(int(events), sizes) < 0:
            raise RuntimeError(self.error())
        numbers, into = room(8 * sizes[0])
        text, into_text = room(sizes[1])
        self._library.cudamem_card_read_snapshot(into, into_text)
        words = text[: sizes[1]].decode(errors="replace").split("\0")
        return SnapshotReader(array("q", numbers[: 8 * sizes[0]]), words).read(cards)

    def error(self) -> str:
        """Why the last call failed."""
        message: bytes = self._library.cudamem_card_error()
        return message.decode(errors="replace")


def _count(numbers: Any) -> dict[str, int]:
    return {name: next(numbers) for name in VALUES}


@cache
def _engine() -> ctypes.PyDLL:
    return load(ENGINE)


@cache
def _of_this_process() -> ctypes.PyDLL:
    library = load(LIBRARY)
    wide = (
        "enter",
        "leave",
        "device",
        "set_device",
        "stream",
        "new_stream",
        "stats",
        "free_memory",
        "take",
        "pass",
        "renew",
        "set_trap",
        "values",
        "radix_sort",
    )
    for name in (*wide, "recording", "snapshot"):
        getattr(library, f"cudamem_card_{name}").restype = ctypes.c_int64
    library.cudamem_card_error.restype = ctypes.c_char_p
    for name, types in {
        "set_device": [ctypes.c_int64],
        "set_values": [ctypes.c_int64],
        "stream": [ctypes.c_int64],
        "set_stream": [ctypes.c_int64] * 2,
        "new_stream": [ctypes.c_int64] * 2,
        "sleep": [ctypes.c_double],
        "stats": [ctypes.c_int64, ctypes.c_void_p],
        "reset_peaks": [ctypes.c_int64],
        "reset_sums": [ctypes.c_int64],
        "set_fraction": [ctypes.c_int64, ctypes.c_double],
        "free_memory": [ctypes.c_int64],
        "take": [ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p],
        "give": [ctypes.c_int64],
        "reset_pinned": [ctypes.c_int64],
        "record": [ctypes.c_int64] * 4,
        "default_generator": [ctypes.c_int64],
        "pass": [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64],
        "set_trap": [ctypes.c_int64, *ARGUMENTS],
        "radix_sort": [ctypes.c_int64] * 3,
        "set_engine": [ctypes.c_uint64],
    }.items():
        getattr(library, f"cudamem_card_{name}").argtypes = types
    with suppress(FramesUnreadable):  # then no lines are known
        library.cudamem_card_set_python(ctypes.byref(this_python()))
        atexit.register(library.cudamem_card_set_python, None)
    engine = backward_code()
    library.cudamem_card_set_engine(0 if engine is None else id(engine))
    return library
