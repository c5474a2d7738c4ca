"""What categories and the timeline cost beside torch's own, and whether they stay linear.

Processor time of one thread, garbage collector off, the best of a few rounds that take turns, from the profiler's
result to the finished timeline. Exit status 1 when a limit is broken. Run:
`python -m suites.benchmarks.categories [--large]`; `--large` also takes a trace of a million events, which needs about
6 GiB.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch
from torch.profiler import _memory_profiler

from cudamem_testing.trace import data_flow, read_events
from cudamem_testing.trace.categories import categories
from cudamem_testing.trace.timeline import timeline
from suites.benchmarks.trace import best, recorded

EVENTS, MANY_EVENTS = 70_000, 1_000_000
ROUNDS = 3
SPEED_LIMIT = 8.0  # times as fast as torch
GROWTH_LIMIT = 1.3  # time per event at a million events, in times per event at 70,000


def ours(results: Any) -> object:
    """Reader, data flow, categories and timeline."""
    return timeline(categories(data_flow(read_events(results.experimental_event_tree()))))


def theirs(results: Any) -> object:
    """Torch's timeline, with the categories that it finds on the way."""
    return _memory_profiler.MemoryProfile(results).timeline


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 when a limit is broken."""
    large = "--large" in (sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(1)
    results = recorded(EVENTS)
    gc.collect()
    gc.disable()
    try:
        trace = read_events(results.experimental_event_tree())
        flow = data_flow(trace)
        found = categories(flow)
        count = len(trace.events)
        times = best(
            {
                "reader": lambda: read_events(results.experimental_event_tree()),
                "data flow": lambda: data_flow(trace),
                "categories": lambda: categories(flow),
                "timeline": lambda: timeline(found),
                "all": lambda: ours(results),
                "torch": lambda: theirs(results),
            },
            ROUNDS,
        )
        print(f"{count} events, microseconds an event")
        for name, elapsed in times.items():
            print(f"  {name:<10} {elapsed / count * 1e6:6.2f}")
        speed = times["torch"] / times["all"]
        print(f"  {speed:.2f} times as fast as torch (at least {SPEED_LIMIT})")
        passed = speed >= SPEED_LIMIT
        if large:
            many = recorded(MANY_EVENTS)
            gc.collect()
            many_count = len(read_events(many.experimental_event_tree()).events)
            times = best({"few": lambda: ours(results), "many": lambda: ours(many)}, 3)
            growth = (times["many"] / many_count) / (times["few"] / count)
            print(f"{many_count} events: {times['many'] / many_count * 1e6:.2f} microseconds an event")
            print(f"  {growth:.2f} times as many as of {count} (at most {GROWTH_LIMIT})")
            passed = passed and growth <= GROWTH_LIMIT
    finally:
        gc.enable()
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
