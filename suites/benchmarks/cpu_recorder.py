"""What the CPU recorder costs for operators so small that nothing else hides it.

One process, plain and recorded rounds interleaved, and processor time of the thread, so that a busy machine slows
all of them alike; the ratio is the median of those to the plain round beside.
Run: `python -m suites.benchmarks.cpu_recorder [operators]`.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from unittest import mock

import torch

from cudamem_testing.recorders.build import compiled
from cudamem_testing.recorders.native import NativeRecorder

ROUND = 2_000
DEPTH_BELOW_STOP = 5
DEPTH = 50


def operators(count: int) -> float:
    """Seconds for `count` additions of 16 floats."""
    a, b = torch.ones(16), torch.ones(16)
    start = time.thread_time()
    for _ in range(count):
        a.add(b)
    return time.thread_time() - start


def innermost(depth: int, count: int) -> float:
    """Run the operators under `depth` more frames."""
    return innermost(depth - 1, count) if depth else operators(count)


def stop_here(count: int) -> float:
    """Where stacks end: as the plugin's own frame around a test does."""
    return innermost(DEPTH_BELOW_STOP - 2, count)


def outermost(depth: int, count: int) -> float:
    """Frames beyond the stop."""
    return outermost(depth - 1, count) if depth else stop_here(count)


def modes(recorder: NativeRecorder) -> dict[str, Callable[[], None]]:
    """What is switched on before a round."""

    def record(stacks: bool, events: bool) -> Callable[[], None]:
        def switch() -> None:
            recorder.install()
            recorder.set_recording(stacks=stacks, events=events)

        return switch

    return {
        "plain": recorder.uninstall,
        "plain again": recorder.uninstall,
        "counting": record(False, False),
        "counting + stacks": record(True, False),
        "counting + events": record(False, True),
        "counting + stacks + events": record(True, True),
    }


def compile_seconds() -> float:
    """A compilation from nothing."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", CUDAMEM_CACHE=str(Path(folder))):
        start = time.perf_counter()
        compiled()
        return time.perf_counter() - start


def main(total: int = 1_000_000) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    recorder = NativeRecorder.load()
    recorder.restart_events()
    recorder.swap_stop_codes([stop_here.__code__])
    switches = modes(recorder)
    times: dict[str, list[float]] = {name: [] for name in switches}
    operators(ROUND)
    for step in range(max(total // ROUND, 1)):
        if step == 1:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for name, switch in switches.items():
            switch()
            times[name].append(outermost(DEPTH - DEPTH_BELOW_STOP - 1, ROUND))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    recorder.uninstall()
    plain = times["plain"]
    print(f"{total:,} operators a mode, torch {torch.__version__}, frames {DEPTH}, below the stop {DEPTH_BELOW_STOP}")
    for name, taken in times.items():
        middle = median(t / p for t, p in zip(taken, plain, strict=True))
        print(
            f"  {name:<28} {median(taken) / ROUND * 1e9:7.0f} ns an operator  {middle:.3f} x  "
            f"(fastest rounds {min(taken) / min(plain):.3f} x)"
        )
    slot = recorder.slot()
    reads = min(_timed(slot.read) for _ in range(5))
    print(f"  one read {reads * 1e6:.2f} us; compile {compile_seconds():.1f} s; memory grown {grown / 1024:.1f} MiB")
    print(f"  stacks kept {recorder.stack_counts().kept}")


def _timed(call: Callable[[], object], count: int = 20_000) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
