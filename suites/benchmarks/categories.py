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

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.trace.categories import categories
from cudamem_testing.trace.graph import data_flow
from cudamem_testing.trace.reader import read_events
from cudamem_testing.trace.timeline import timeline
from suites.benchmarks.trace import EVENTS, beside_torch, recorded

ROUNDS = 3
SPEED_LIMIT = 8.0  # times as fast as torch


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
    with CollectorPaused():
        trace = read_events(results.experimental_event_tree())
        flow = data_flow(trace)
        found = categories(flow)
        stages = {
            "reader": lambda: read_events(results.experimental_event_tree()),
            "data flow": lambda: data_flow(trace),
            "categories": lambda: categories(flow),
            "timeline": lambda: timeline(found),
        }
        passed = beside_torch(results, stages, ours, theirs, ROUNDS, SPEED_LIMIT, large)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
