"""What evidence costs: events replayed to the peak and grouped by line, and the section of 10,000 live blocks.

Processor time of one thread, the best of a few rounds. Exit status 1 when a limit is broken.
Run: `python -m suites.benchmarks.replay [events]`.
"""

from __future__ import annotations

import random
import sys
import time
from array import array
from collections.abc import Callable
from typing import Any

from cudamem_testing.model.live_tables import live_section
from cudamem_testing.model.stacks import Locator
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.snapshots.record import Recording
from cudamem_testing.snapshots.replay import replay

EVENTS = 1_000_000
REPLAY_LIMIT = 3.0  # seconds for a million events
SECTION_LIMIT = 0.5  # seconds for a live set of 10,000 blocks
ROUNDS = 3
PLACES = Locator("/home/me/project")
SLOT = 2 * 2**20


def cuda_snapshot(events: int, live: int = 5_000, stacks: int = 2_000) -> dict[str, Any]:
    """A snapshot of a card: half the blocks large ones that keep unsplit rests, a segment each."""
    generator = random.Random(0)
    frames = [{"filename": f"/home/me/project/m{n % 50}.py", "line": n, "name": f"f{n % 97}"} for n in range(3_000)]
    lists = [generator.choices(frames, k=12) for _ in range(stacks)]
    trace: list[dict[str, Any]] = []
    held: list[tuple[int, int, list[Any]]] = []
    free: list[int] = []
    top = 0x7F0000000000
    while len(trace) < events:
        now = 1_700_000_000_000_000 + 3 * len(trace)
        shared = {"stream": 0, "time_us": now, "compile_context": "N/A"}
        if held and (len(held) > live or generator.random() < 0.45):
            address, size, stack = held.pop(generator.randrange(len(held)))
            gone = {"addr": address, "size": size, **shared, "frames": stack}
            trace += [{"action": "free_requested", **gone}, {"action": "free_completed", **gone}]
            free.append(address)
        else:
            if not free:
                free.append(top)
                top += SLOT
            address, size, stack = free.pop(), generator.randint(1, SLOT), lists[generator.randrange(stacks)]
            trace.append({"action": "alloc", "addr": address, "size": size, **shared, "frames": stack})
            held.append((address, size, stack))
    used = {address: (size, stack) for address, size, stack in held}
    segments = [_segment(address, *used.get(address, (0, []))) for address in range(0x7F0000000000, top, SLOT)]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {"max_split_size": -1}}


def _segment(address: int, requested: int, stack: list[Any]) -> dict[str, Any]:
    size = -(-requested // 512) * 512
    if size > 2**20:
        size = SLOT  # a rest of less than 1 MiB is not split off
    live = {"size": size, "requested_size": requested, "state": "active_allocated", "frames": stack}
    rest = {"size": SLOT - size, "requested_size": 0, "state": "inactive", "frames": []}
    blocks = [block for block in (live, rest) if block["size"]]
    return {"device": 0, "address": address, "total_size": SLOT, "stream": 0, "segment_type": "large", "blocks": blocks}


def cpu_rows(events: int, live: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Rows of the CPU recorder: live blocks and events."""
    generator = random.Random(1)
    held: list[tuple[int, ...]] = []
    rows: list[tuple[int, ...]] = []
    for number in range(1, events + 1):
        if held and (len(held) >= live or generator.random() < 0.4):
            address, size, sequence, stack, owner, thread = held.pop(generator.randrange(len(held)))
            rows.append((address, size, sequence, number * 100, stack, owner, thread, 1))
        else:
            block = (number * 4096, generator.randint(64, 10**6), number, generator.randint(1, 2_000), 1, 1)
            held.append(block)
            rows.append((*block[:3], number * 100, *block[3:], 0))
    return held, rows


def cpu_recording(held: list[tuple[int, ...]], rows: list[tuple[int, ...]]) -> Recording:
    """The recording of those rows, with twelve frames a stack."""
    stack = [("/home/me/project/a.py", line, f"f{line}") for line in range(12)]
    return read_cpu(held, rows, lambda n: PLACES.stack([("/home/me/project/m.py", n, "f"), *stack]))  # type: ignore[arg-type]


def to_the_peak(recording: Recording) -> None:
    """What is timed: the whole way from a recording to groups by line."""
    peak = replay(recording).peak()
    peak.live.group_by(lambda block: block.stack.line)


def best(action: Callable[[], object]) -> float:
    """Seconds of processor time, the least of a few rounds."""
    times = array("d")
    for _ in range(ROUNDS):
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return min(times)


def main(events: int = EVENTS) -> int:
    """Measure and print."""
    snapshot = cuda_snapshot(events)
    figures: list[tuple[str, float, float | None]] = []
    figures.append(("read a snapshot of a card", best(lambda: read(snapshot, locator=PLACES)), None))
    cuda = read(snapshot, locator=PLACES)
    limit = REPLAY_LIMIT * events / EVENTS
    figures.append(("card: replay to the peak, by line", best(lambda: to_the_peak(cuda)), limit))
    rows = cpu_rows(events, 10_000)
    figures.append(("rows of the CPU recorder to a recording", best(lambda: cpu_recording(*rows)), None))
    cpu = cpu_recording(*rows)
    figures.append(("cpu: replay to the peak, by line", best(lambda: to_the_peak(cpu)), limit))
    few = cpu_recording(*cpu_rows(30_000, 10_000))
    section = best(lambda: live_section(replay(few).peak().live))
    figures.append(("section of 10,000 live blocks", section, SECTION_LIMIT))
    for name, seconds, most in figures:
        print(f"{name:<42} {seconds:6.2f} s" + ("" if most is None else f"  (at most {most:.1f} s)"))
    return int(any(most is not None and seconds > most for _, seconds, most in figures))


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
