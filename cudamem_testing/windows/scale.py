"""Measures scaling: runs a function at several sizes and reads the peak of each run. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from cudamem_testing.guards import collect_garbage
from cudamem_testing.model.scaling import Scaling, Series
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.windows import Window
from cudamem_testing.recorders.base import Recorder
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.windows.tracker import Tracker

__tracebackhide__ = hide_wrong_arguments

LEAST_SIZES = 3
#: If sizes are chosen: the first one, the rise that suffices for a slope, the most sizes, and the most seconds.
FIRST, ENOUGH, MOST_SIZES, MOST_SECONDS = 64, 1 << 20, 12, 5.0
Lines = Callable[[Window], Mapping[str, int]]
#: Size, bytes, and bytes by line.
Run = tuple[int, int, Mapping[str, int]]
Ran = Sequence[Run]


def measure_scaling(
    tracker: Tracker,
    recorder: Recorder,
    function: Callable[..., object],
    variables: Mapping[str, Sequence[int] | None],
    lines: Lines | None = None,
    *,
    named: bool = True,
) -> Scaling:
    """Vary one variable after the other, the others at their smallest; measure the peak of each run above its start.

    Garbage is collected before each run, and one run at the smallest sizes is not counted: it fills caches. Sizes that
    are ``None`` are chosen: they double until two rises in a row are at least 1 MiB, or some seconds have passed.
    ``named`` variables are passed by name.

    Raises:
        ValueError: for fewer than three sizes, or sizes that do not rise.
        RuntimeError: if the peak of the device is unknown.
    """
    for name, sizes in variables.items():
        _check(name, sizes)
    first = {name: FIRST if sizes is None else sizes[0] for name, sizes in variables.items()}

    def run(chosen: Mapping[str, int]) -> tuple[int, Mapping[str, int]]:
        collect_garbage(needed=True)
        label = ", ".join(f"{name}={size}" for name, size in chosen.items())
        span = tracker.open(label)
        try:
            if named:
                function(**chosen)
            else:
                function(*chosen.values())
        finally:
            windows = tracker.close(span)
        window = next(one for one in windows if one.device == recorder.device)
        if window.peak_growth is None:
            raise RuntimeError(f"the peak of {recorder.device} is unknown: {'; '.join(window.notes) or 'no reason'}")
        return window.peak_growth, {} if lines is None else lines(window)

    run(first)
    found, notes = [], []
    for name, given in variables.items():
        ran: list[Run] = []
        for size in _doubled(ran) if given is None else given:
            ran.append((size, *run({**first, name: size})))  # noqa: PERF401 - sizes are chosen by what ran
        if given is None:
            notes.append(f"sizes of {name} were chosen: {_why(ran)}")
        places = sorted({line for _, _, by_line in ran for line in by_line})
        found.append(
            Series(
                name,
                tuple(size for size, _, _ in ran),
                tuple(number for _, number, _ in ran),
                {other: size for other, size in first.items() if other != name},
                {line: tuple(by_line.get(line, 0) for _, _, by_line in ran) for line in places},
            )
        )
    return Scaling(recorder.device, tuple(found), notes=tuple(notes))


def _check(name: str, sizes: Sequence[int] | None) -> None:
    if sizes is None:
        return
    if len(sizes) < LEAST_SIZES or any(type(size) is not int or size < 1 for size in sizes):
        raise ValueError(f"{name}={[*sizes]}: write at least {LEAST_SIZES} sizes, whole numbers from 1")
    if any(after <= before for before, after in pairwise(sizes)):
        raise ValueError(f"{name}={[*sizes]}: write sizes that rise")


def _doubled(ran: Ran) -> Iterator[int]:
    """Sizes that double as long as needed; ``ran`` are the results so far."""
    until = time.monotonic() + MOST_SECONDS
    for place in range(MOST_SIZES):
        if place >= LEAST_SIZES and (time.monotonic() > until or _is_enough(ran)):
            return
        yield FIRST << place


def _is_enough(ran: Ran) -> bool:
    rises = [after[1] - before[1] for before, after in pairwise(ran)]
    return len(rises) > LEAST_SIZES - 1 and all(rise >= ENOUGH for rise in rises[-LEAST_SIZES + 1 :])


def _why(ran: Ran) -> str:
    reach = f"{ran[0][0]} to {ran[-1][0]}"
    if _is_enough(ran):
        return f"{reach}, where each doubling adds {format_size(ENOUGH)} or more"
    return f"{reach}, all that were tried in {MOST_SECONDS:g} s"
