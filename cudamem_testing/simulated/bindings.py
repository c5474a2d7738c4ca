"""The functions of ``torch._C`` that a CUDA build has, answered by the simulated card.

All of torch's Python code for CUDA, and all of this package that measures a card, stands on them. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from cudamem_testing.model.allocator_settings import AllocatorSettings
from cudamem_testing.model.simulated_cards import Cards
from cudamem_testing.simulated.native import STACKS, NativeCard

CUDA = 1  # of c10::DeviceType
MOST_EVENTS = 10_000_000
PREFIX = "_cuda_"


class SimulatedCardError(NotImplementedError):
    """A simulated card cannot do what was asked of it; the message says what, and where it runs."""


def refuse(*arguments: object, **options: object) -> NoReturn:
    """Raise for what needs a real card.

    Raises:
        SimulatedCardError: always.
    """
    raise SimulatedCardError(
        "a simulated card captures no CUDA graphs, has no memory pools of its own, and runs no CUDA or Triton kernels: "
        "run this on a real card"
    )


class Bindings:
    """Functions by torch's names, without their prefix ``_cuda_``."""

    def __init__(self, native: NativeCard, cards: Cards, settings: AllocatorSettings) -> None:
        self._native = native
        self._cards = cards
        self._settings = settings
        self._fractions = [1.0] * cards.count
        self._metadata = ""
        self._debug = 0

    def functions(self) -> dict[str, Callable[..., Any]]:
        """All of them, by torch's full names; and that of CUDA's runtime."""
        own = [name for name in vars(type(self)) if not name.startswith("_") and name != "functions"]
        found = {PREFIX + name: getattr(self, name) for name in own}
        native = self._native
        found |= {
            "_cuda_getDevice": native.device,
            "_cuda_setDevice": native.set_card,
            "_cuda_emptyCache": native.empty,
            "_cuda_resetPeakMemoryStats": native.reset_peaks,
            "_cuda_resetAccumulatedMemoryStats": native.reset_sums,
            "_cuda_hostMemoryStats": native.pinned,
            "_cuda_attach_out_of_memory_observer": native.observe,
            "_cuda_synchronize": native.wait,
            "_cuda_clearCublasWorkspaces": native.clear_workspaces,
            "_cuda_cudaCachingAllocator_raw_delete": native.give,
            "cudaMemGetInfo": self._memory_info,
        }
        nothing: tuple[tuple[str, Any], ...] = (
            ("init", None),
            ("ipc_collect", None),
            ("isInBadFork", False),
            ("isCurrentStreamCapturing", False),
            ("hasPrimaryContext", True),
            ("getAllocatorBackend", "native"),
            ("getArchFlags", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"),
            ("getCompiledVersion", 13000),
            ("canDeviceAccessPeer", True),
            ("cudaCachingAllocator_enable", None),
            ("cudaCachingAllocator_is_enabled", True),
            ("lock_mutex", None),
            ("unlock_mutex", None),
            ("tunableop_is_enabled", False),
        )
        for name, value in nothing:
            found.setdefault(PREFIX + name, lambda *arguments, value=value: value)
        return found

    def getDeviceCount(self) -> int:  # noqa: N802
        return self._cards.count

    def exchangeDevice(self, card: int) -> int:  # noqa: N802
        before: int = self._native.device()
        if card >= 0:
            self._native.set_card(card)
        return before if card >= 0 else -1

    def maybeExchangeDevice(self, card: int) -> int:  # noqa: N802
        return self.exchangeDevice(card)

    def getCurrentStream(self, card: int) -> tuple[int, int, int]:  # noqa: N802
        return self._native.stream(card), card, CUDA

    def getCurrentRawStream(self, card: int) -> int:  # noqa: N802
        return int(self._native.stream(card))

    def getDefaultStream(self, card: int) -> tuple[int, int, int]:  # noqa: N802
        return 0, card, CUDA

    def getStreamFromExternal(self, pointer: int, card: int) -> tuple[int, int, int]:  # noqa: N802
        return pointer, card, CUDA

    def setStream(self, stream_id: int, device_index: int, device_type: int) -> None:  # noqa: N802
        self._native.set_card(device_index)
        self._native.set_stream(device_index, stream_id)

    def sleep(self, cycles: int) -> None:
        self._native.sleep(cycles / 1.98e9)

    def memoryStats(self, card: int) -> dict[str, Any]:  # noqa: N802
        return {**self._native.stats(card), "max_split_size": self._settings.max_split or -1}

    def setMemoryFraction(self, fraction: float, card: int) -> None:  # noqa: N802
        self._fractions[card] = fraction
        self._native.set_fraction(card, fraction)

    def getMemoryFraction(self, card: int) -> float:  # noqa: N802
        return self._fractions[card]

    def cudaCachingAllocator_raw_alloc(self, size: int, stream: int) -> int:  # noqa: N802
        return self._native.take(self._native.device(), size, stream)

    def resetPeakHostMemoryStats(self) -> None:  # noqa: N802
        self._native.reset_pinned(1)

    def resetAccumulatedHostMemoryStats(self) -> None:  # noqa: N802
        self._native.reset_pinned(0)

    def isHistoryEnabled(self) -> bool:  # noqa: N802
        return bool(self._native.recording())

    def record_memory_history(
        self,
        enabled: str | None,
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = MOST_EVENTS,
        clear_history: bool = False,
        *more: Any,
    ) -> None:
        on = enabled is not None
        most = min(max_entries, MOST_EVENTS) if enabled == "all" else 1
        self._native.record(on, STACKS.index(context) if on else 0, most, clear_history)

    def record_memory_history_legacy(self, enabled: bool, *more: Any) -> None:
        self.record_memory_history("all" if enabled else None)

    def memorySnapshot(self, asked: Any = None) -> dict[str, Any]:  # noqa: N802
        events = not (isinstance(asked, tuple) and len(asked) > 2 and not asked[2])
        segments, traces = self._native.snapshot(self._cards.count, events)
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": self._shown_settings(),
            "external_annotations": [],
        }

    def setMemoryMetadata(self, text: str) -> None:  # noqa: N802
        self._metadata = text

    def getMemoryMetadata(self) -> str:  # noqa: N802
        return self._metadata

    def set_sync_debug_mode(self, mode: int) -> None:
        self._debug = mode

    def get_sync_debug_mode(self) -> int:
        return self._debug

    def _memory_info(self, card: int) -> tuple[int, int]:
        return self._native.free_memory(card), self._cards.model.memory

    def _shown_settings(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "PYTORCH_CUDA_ALLOC_CONF": settings.text,
            "max_split_size": settings.max_split or -1,
            "garbage_collection_threshold": settings.collect_above,
            "expandable_segments": settings.expandable,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "roundup_power2_divisions": {str(2**at): value for at, value in enumerate(settings.divisions)},
        }
