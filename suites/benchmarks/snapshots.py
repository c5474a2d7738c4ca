"""What snapshots cost on the command line: 1,000,000 events, and a file with a stack of its own for each event.

Processor time of one thread, once. Beside torch's `_memory_viz` where it does the same (live by stack). Exit status 1
when a limit is broken. Run: `python -m suites.benchmarks.snapshots [events]`.
"""

from __future__ import annotations

import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch.cuda import _memory_viz

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.live_tables import live_table
from cudamem_testing.snapshots.churn import churn
from cudamem_testing.snapshots.curves import curve
from cudamem_testing.snapshots.diff import compare
from cudamem_testing.snapshots.flames import flame_of, volume
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.replay import replay
from cudamem_testing.snapshots.snapshot_files import read_file
from cudamem_testing.snapshots.whatif.answers import what_if
from suites.benchmarks.replay import PLACES, cuda_snapshot

R = TypeVar("R")
EVENTS = 1_000_000
PEAK_LIMIT, DIFF_LIMIT = 3.0, 6.0  # seconds for a million events
FILE_LIMIT = 60.0  # seconds for a file of 1 GB
_broken: list[str] = []


def timed(name: str, action: Callable[[], R], limit: float | None = None) -> R:
    """Run once, print the seconds."""
    begin = time.process_time()
    result = action()
    seconds = time.process_time() - begin
    print(f"{name:<44} {seconds:7.2f} s" + ("" if limit is None else f"  (at most {limit:.1f} s)"), flush=True)
    if limit is not None and seconds > limit:
        _broken.append(name)
    return result


def main(events: int = EVENTS) -> int:
    """Measure and print."""
    snapshot = cuda_snapshot(events)
    print(f"{events:,} events")
    _time_views(snapshot, events / EVENTS)
    for event in snapshot["device_traces"][0]:  # torch's own files have a list and a text for each event
        event["frames"] = [*event["frames"], *event["frames"]]
        event["compile_context"] = "".join(("N/", "A"))
    _time_file(pickle.dumps(snapshot, 4))
    for name in _broken:
        print(f"too slow: {name}")
    return int(bool(_broken))


def _time_views(snapshot: dict[str, Any], scale: float) -> None:
    timed("torch: live by stack (_memory_viz.memory)", lambda: _memory_viz.memory(snapshot, format_flamegraph=str))
    recording = timed("read", lambda: read(snapshot, locator=PLACES))
    replayed = timed("replay", lambda: replay(recording))
    timed("live by stack at the end", lambda: [*flame_of(replayed.live_at(), "", "").folded()])
    timed("peak by line, with the replay", lambda: live_table(replay(recording).peak().live), PEAK_LIMIT * scale)
    timed("diff of two", lambda: compare(recording, recording), DIFF_LIMIT * scale)
    timed("memory over time", lambda: curve(replayed, (), Counters()))
    timed("volume by stack", lambda: volume(replayed, ""))
    timed("churn", lambda: churn(replayed))
    timed("what-if, all answers", lambda: what_if(recording))


def _time_file(data: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = len(data) / 1e9
    print(f"a file of {size:.3f} GB, a list of 24 frames for each event")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dump.pickle"
        file.write_bytes(data)
        timed("Python's own pickle.loads", lambda: pickle.loads(data))
        recording = timed("file to a recording", lambda: read_file(file), FILE_LIMIT * size)
    timed("peak by line, with the replay", lambda: live_table(replay(recording).peak().live))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"memory: {after / 2**20:.2f} GiB at most, {before / 2**20:.2f} GiB before reading")


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
