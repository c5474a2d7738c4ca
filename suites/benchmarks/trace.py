"""What the data flow costs beside torch's own analysis, whether it stays linear, and how large its records are.

Processor time of one thread, garbage collector off, the best of a few rounds that take turns. Exit status 1 when a
limit is broken. Run: `python -m suites.benchmarks.trace [--large]`; `--large` also takes a trace of a million events,
which needs about 6 GiB.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, _memory_profiler, profile

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.trace.graph import data_flow
from cudamem_testing.trace.reader import read_events

EVENTS, MANY_EVENTS = 70_000, 1_000_000
ROUNDS = 5
SPEED_LIMIT = 3.0  # times as fast as torch
GROWTH_LIMIT = 1.3  # time per event at a million events, in times per event at 70,000
SIZE_LIMIT = 400  # bytes an event


def recorded(events: int) -> Any:
    """The profiler's results of so many training steps that there are at least so many events."""
    torch.manual_seed(0)
    layers = [layer for _ in range(24) for layer in (torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, foreach=False)
    x, target = torch.ones(4, 8), torch.zeros(4, 8)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()

    def run(steps: int) -> Any:
        with profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True
        ) as prof:
            for _ in range(steps):
                step()
        return prof.profiler.kineto_results

    step()
    of_two = len(read_events(run(2).experimental_event_tree()).events)
    return run(2 * events // of_two + 2)


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call; what it made dies outside of the measurement."""
    start = time.process_time()
    result = work()
    elapsed = time.process_time() - start
    del result
    return elapsed


def best(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least time of each, all taking turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: min(measured) for name, measured in times.items()}


def ours(results: Any) -> object:
    """Reader and data flow."""
    return data_flow(read_events(results.experimental_event_tree()))


def theirs(results: Any) -> object:
    """Torch's path to its graph."""
    return _memory_profiler.DataFlowGraph(_memory_profiler.OpTree(results))


def bytes_per_event(results: Any) -> float:
    """What a trace's records take, asked from the allocator of Python."""
    tracemalloc.start()
    trace = read_events(results.experimental_event_tree())
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size / len(trace.events)


def beside_torch(
    results: Any,
    stages: dict[str, Callable[[], object]],
    ours: Callable[[Any], object],
    theirs: Callable[[Any], object],
    rounds: int,
    limit: float,
    large: bool,
) -> bool:
    """Print what each stage, all of them and torch cost an event, and if asked what a large trace costs.

    Whether we are ``limit`` times as fast as torch, and linear.
    """
    count = len(read_events(results.experimental_event_tree()).events)
    times = best({**stages, "all": lambda: ours(results), "torch": lambda: theirs(results)}, rounds)
    print(f"{count} events, microseconds an event")
    for name, elapsed in times.items():
        print(f"  {name:<10} {elapsed / count * 1e6:6.2f}")
    speed = times["torch"] / times["all"]
    print(f"  {speed:.2f} times as fast as torch (at least {limit})")
    if not large:
        return speed >= limit
    many = recorded(MANY_EVENTS)
    gc.collect()
    many_count = len(read_events(many.experimental_event_tree()).events)
    times = best({"few": lambda: ours(results), "many": lambda: ours(many)}, 3)
    growth = (times["many"] / many_count) / (times["few"] / count)
    print(f"{many_count} events: {times['many'] / many_count * 1e6:.2f} microseconds an event")
    print(f"  {growth:.2f} times as many as of {count} (at most {GROWTH_LIMIT})")
    return speed >= limit and growth <= GROWTH_LIMIT


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 when a limit is broken."""
    large = "--large" in (sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(1)
    results = recorded(EVENTS)
    gc.collect()
    with CollectorPaused():
        trace = read_events(results.experimental_event_tree())
        stages = {
            "reader": lambda: read_events(results.experimental_event_tree()),
            "data flow": lambda: data_flow(trace),
        }
        size = bytes_per_event(results)
        print(f"{size:.0f} bytes an event (below {SIZE_LIMIT})")
        passed = beside_torch(results, stages, ours, theirs, ROUNDS, SPEED_LIMIT, large)
    return 0 if passed and size < SIZE_LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
