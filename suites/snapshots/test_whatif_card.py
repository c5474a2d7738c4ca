"""What is answered about other settings, held to runs with these settings: on a card, and on a simulated one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from bisect import bisect_left
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cudamem_testing.snapshots.record import Kind, Recording
from cudamem_testing.snapshots.snapshot_files import read_file
from cudamem_testing.snapshots.whatif.answers import EXPANDABLE, Answer, low_points, what_if
from cudamem_testing.snapshots.whatif.job import prepare, reserved_course
from cudamem_testing.snapshots.whatif.why import why
from suites import forked

ROOT = Path(__file__).parents[2]
#: By how much the most that is reserved may be off.
WELL = 0.05
#: Seconds for a run, which takes four of the processor and is among others.
TIMEOUT = 240


class Run(NamedTuple):
    """One to make: the file of its snapshot, its settings, and the steps after which the cache is emptied."""

    out: Path
    settings: str = ""
    empty: tuple[int, ...] = ()


def made(runs: list[Run], simulated: bool) -> list[dict[str, Any]]:
    """Make some runs: simulated ones in one process after each other, on a card a process for each, side by side."""
    command = [forked.python(compiler=True), "-m", "fixtures.whatif", "--simulated"]
    parts = [runs]
    if not simulated:
        command, parts = [sys.executable, "-m", "fixtures.whatif"], [[run] for run in runs]
    processes = []
    for part in parts:
        environment = {"PYTORCH_CUDA_ALLOC_CONF": part[0].settings, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, **pipes))
    found = []
    for process, part in zip(processes, parts, strict=True):
        asked = (json.dumps({"out": str(run.out), "settings": run.settings, "empty": run.empty}) for run in part)
        out, _ = process.communicate("\n".join(asked), timeout=TIMEOUT * len(part))
        assert process.returncode == 0
        found += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert len(found) == len(runs)
    return found


def peak_until(recording: Recording, allocations: int) -> tuple[int, bool]:
    """The most that was reserved until so many allocations, and whether there were so many."""
    kinds, place = recording.events.kinds, -1
    for _ in range(allocations):
        place = kinds.find(Kind.ALLOC, place + 1)
        if place < 0:
            return max(reserved_course(recording)), False
    return max(reserved_course(recording)[: place + 1]), True


def check(folder: Path, simulated: bool) -> None:
    """Ask the record of a run that ended in out of memory, then run with each setting, side by side."""
    (run,) = made([Run(folder / "default.pickle")], simulated)
    assert run["failed"]
    recording = read_file(folder / "default.pickle")
    prepared = prepare(recording, run["allowed"])
    asked = what_if(recording, run["allowed"])
    assert asked.requested is not None
    assert abs(asked.off) <= WELL / 5
    answers: dict[str, Answer] = {one.kind if one.kind == "call" else one.what: one for one in asked.answers}
    allocations = recording.events.kinds[: prepared.failed].count(Kind.ALLOC) + 1
    kinds, low = recording.events.kinds, low_points(prepared)
    done = [kinds[: prepared.positions[place]].count(Kind.ALLOC) for place in low]
    steps = [bisect_left(run["ended"], count) for count in done]
    split = next(name for name in answers if name.startswith("max_split"))
    runs = {
        EXPANDABLE: Run(folder / "expandable.pickle", EXPANDABLE),
        split: Run(folder / "split.pickle", split),
        "call": Run(folder / "call.pickle", empty=tuple(steps)),
    }
    made([*runs.values()], simulated)
    for name, other in runs.items():
        real, fits = peak_until(read_file(other.out), allocations)
        told = answers[name]
        off = told.peak_reserved / real - 1
        print(f"{name}: {told.peak_reserved} told, {real} reserved, {off:+.2%}, fits {told.fits} {fits}")
        assert told.fits == fits, name
        assert abs(off) <= WELL, name
    found = why(recording, run["allowed"])
    assert found is not None
    assert found.obstacles


@pytest.mark.gpu(count=1)
@pytest.mark.subprocess
def test_answers_hold_on_a_card(tmp_path: Path) -> None:
    check(tmp_path, simulated=False)


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.simulated_card
def test_answers_hold_on_a_simulated_card(tmp_path: Path) -> None:
    check(tmp_path, simulated=True)
