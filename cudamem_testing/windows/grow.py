"""Measures growth: runs a step many times and reads the level after each. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cudamem_testing.guards import collect_garbage
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.growth import Growth
from cudamem_testing.recorders.base import Recorder
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.windows.tracker import Tracker

__tracebackhide__ = hide_wrong_arguments


@dataclass(frozen=True, slots=True)
class Grown:
    """What grew: sizes with the number of blocks of each, and lines with the allocation and the holder."""

    sizes: tuple[tuple[int, int], ...] = ()
    lines: tuple[str, ...] = ()


Explain = Callable[[Recorder, Counters], Grown]


def measure_growth(
    tracker: Tracker,
    recorder: Recorder,
    step: Callable[[], object],
    steps: int,
    warmup: int,
    explain: Explain | None = None,
) -> Growth:
    """Run ``step`` for ``warmup`` and then for ``steps`` times; levels are allocated bytes of the recorder's device.

    Garbage is collected before the first level is read, and after the last one.

    Raises:
        ValueError: for fewer than 4 steps, which cannot show growth.
        RuntimeError: if the device's level is unknown, or garbage cannot be collected because a stream captures.
    """
    if steps < 4 or warmup < 0:
        raise ValueError(f"steps={steps}, warmup={warmup}: write at least 4 steps and no negative warm-up")
    _repeat(step, warmup)
    collect_garbage(needed=True)
    start = tracker.read(recorder)
    levels = [_level(recorder, start)]
    for _ in range(steps):
        _repeat(step, 1)
        levels.append(_level(recorder, tracker.read(recorder)))
    collect_garbage(needed=True)
    collected = levels[-1] - _level(recorder, tracker.read(recorder))
    growth = Growth(recorder.device, tuple(levels), max(0, collected))
    if not growth.grows or explain is None:
        return growth
    grown = explain(recorder, start)
    return replace(growth, sizes=grown.sizes, evidence=grown.lines)


def _repeat(step: Callable[[], object], times: int) -> None:
    for _ in range(times):
        step()  # its result is dropped at once: keeping it would cause growth


def _level(recorder: Recorder, counters: Counters) -> int:
    if counters.allocated is None:
        raise RuntimeError(f"allocated bytes of {recorder.device} are unknown: {'; '.join(counters.notes)}")
    return counters.allocated


def by_size(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Sizes with the number of blocks of each, the largest total first."""
    numbers: dict[int, int] = {}
    for size in sizes:
        numbers[size] = numbers.get(size, 0) + 1
    return tuple(sorted(numbers.items(), key=lambda pair: -pair[0] * pair[1]))
