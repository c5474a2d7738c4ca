"""What a person waits for at the command line of snapshots: commands on files of four sizes, and on one of 1 GB.

Every command runs as a process of its own, with the start of Python and the reading of the file; printed are the
processor time, the time for each event, and the most memory. Each further event must not take longer in larger files.
The library that reads them is compiled before, once, as for every later command: that is a row of its own.
Files hold what torch writes for a history with all contexts: a list of frames for each allocation and for each free.
Beside all but the largest is what the same takes with torch: ``pickle.load``, and ``_memory_viz.memory`` (live by
stack) or ``compare``.

Exit status 1 when a limit is broken. Run: ``python -m suites.benchmarks.snapshots [events]``; ``--large`` adds a file
of 1 GB, which takes ten minutes and 8 GiB to make and to look at, alone and beside itself (``diff``).
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from cudamem_testing.snapshots import native
from suites.benchmarks.replay import cuda_snapshot

EVENTS = 1_000_000
#: Seconds of processor time for a million events, with the reading.
PEAK_LIMIT, DIFF_LIMIT = 3.0, 6.0
#: Seconds and KiB for a file of 1 GB.
FILE_LIMIT, MEMORY_LIMIT = 60.0, 4 * 2**20
#: How many times longer each further event may take between the two largest sizes than from the least to the third.
GROWTH = 1.5
GIGABYTE_EVENTS = 7_000_000
TORCH = {
    "live by stack": "print(len(v.memory(load(0), format_flamegraph=str)))",
    "compare": "print(len(v.compare(load(0)['segments'], load(1)['segments'], format_flamegraph=str)))",
}
_broken: list[str] = []


def write(path: Path, events: int) -> None:
    """A snapshot as torch writes it, which ends in out of memory."""
    gc.disable()
    snapshot = cuda_snapshot(events)
    trace = snapshot["device_traces"][0]
    frames = []
    for event in trace:
        if event["action"] != "free_completed":  # it shares that of the request
            frames = [*event["frames"], *event["frames"]]
        event["frames"], event["compile_context"] = frames, "".join(("N/", "A"))
    last = {"stream": 0, "time_us": trace[-1]["time_us"] + 1, "compile_context": "N/A", "frames": frames}
    trace.append({"action": "oom", "device_free": 2**20, "size": 2**26, **last})
    with path.open("wb") as stream:
        pickle.dump(snapshot, stream, 4)


def measured(command: Sequence[str]) -> tuple[float, int]:
    """Seconds of processor time of a process, and the most KiB that it had."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss


def report(name: str, events: int, found: tuple[float, int], limit: float | None = None) -> float:
    """Print a row; returns the seconds."""
    seconds, memory = found
    each = 1e6 * seconds / events
    text = f"{name:<26} {events:>9,} events {seconds:7.2f} s {each:6.2f} us each {memory / 2**20:5.2f} GiB"
    print(text + ("" if limit is None else f"  (at most {limit:.1f} s)"), flush=True)
    if limit is not None and seconds > limit:
        _broken.append(f"{name}: {seconds:.2f} s of {limit:.1f} s")
    return seconds


def snapshot_command(verb: str, *files: Path) -> list[str]:
    return [sys.executable, "-m", "cudamem_testing", "snapshot", verb, *map(str, files)]


def torch_command(what: str, *files: Path) -> list[str]:
    start = "import pickle, sys; from torch.cuda import _memory_viz as v; "
    start += "load = lambda n: pickle.load(open(sys.argv[1:][n], 'rb')); "
    return [sys.executable, "-c", start + TORCH[what], *map(str, files)]


def in_a_process(path: Path, events: int) -> None:
    """Write a file in a process of its own, whose memory is gone afterwards."""
    subprocess.run([sys.executable, "-m", "suites.benchmarks.snapshots", str(events), "--write", str(path)], check=True)


def sizes(folder: Path, events: int) -> None:
    """Commands on files of four sizes, beside torch."""
    limits = {"peak": PEAK_LIMIT, "diff": DIFF_LIMIT, "why": None}
    seconds: dict[str, list[float]] = {verb: [] for verb in limits}
    numbers = events // 10, 3 * events // 10, events, 3 * events
    for number in numbers:
        file = folder / "dump.pickle"
        in_a_process(file, number)
        for verb, limit in limits.items():
            files = (file, file) if verb == "diff" else (file,)
            allowed = limit if limit is not None and number == EVENTS else None
            seconds[verb].append(report(verb, number, measured(snapshot_command(verb, *files)), allowed))
            name = {"peak": "live by stack", "diff": "compare"}.get(verb)
            if name is not None and number <= events:
                report(f"torch: {name}", number, measured(torch_command(name, *files)))
    for verb, found in seconds.items():
        steps = zip(pairwise(found), pairwise(numbers), strict=True)
        each = [1e6 * (after - before) / (more - few) for (before, after), (few, more) in steps]
        print(f"{verb}: {', then '.join(f'{one:.2f} us' for one in each)} for each further event")
        few, many = 1e6 * (found[2] - found[0]) / (numbers[2] - numbers[0]), each[-1]
        if many > GROWTH * few:
            _broken.append(f"{verb}: {many:.2f} us for each further event of many, {few:.2f} us of few")


def large(folder: Path) -> None:
    """Every command on a file of 1 GB."""
    file = folder / "large.pickle"
    in_a_process(file, GIGABYTE_EVENTS)
    size = file.stat().st_size / 1e9
    print(f"a file of {size:.3f} GB")
    out = folder / "torch.pickle"
    others: dict[str, list[Path]] = {"diff": [file], "convert": [out]}
    for verb in ("show", "peak", "diff", "fragmentation", "flamegraph", "churn", "timeline", "why", "convert"):
        _large(verb, size, file, *others.get(verb, []))
    _large("diff", size, file, out)  # what was written is read as quickly


def _large(verb: str, size: float, *files: Path) -> None:
    found = measured(snapshot_command(verb, *files))
    report(verb, GIGABYTE_EVENTS, found, FILE_LIMIT * size)
    if found[1] > MEMORY_LIMIT:
        _broken.append(f"{verb}: {found[1] / 2**20:.2f} GiB of {MEMORY_LIMIT / 2**20:.0f} GiB")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.snapshots", description=__doc__)
    parser.add_argument("events", type=int, nargs="?", default=EVENTS)
    parser.add_argument("--large", action="store_true", help="also a file of 1 GB")
    parser.add_argument("--write", type=Path, metavar="FILE", help="only write a file of so many events")
    given = parser.parse_args(arguments)
    if given.write is not None:
        write(given.write, given.events)
        return 0
    start = time.perf_counter()
    took = sum(os.times()[:4])
    library = native.loaded()
    took = sum(os.times()[:4]) - took
    print(f"the library: {took:.2f} s to compile and load" if library else "no compiler: Python reads")
    with tempfile.TemporaryDirectory() as folder:
        sizes(Path(folder), given.events)
        if given.large:
            large(Path(folder))
    print(f"{time.perf_counter() - start:.0f} s in all")
    for name in _broken:
        print(f"too slow or too large: {name}")
    return int(bool(_broken))


if __name__ == "__main__":
    raise SystemExit(main())
