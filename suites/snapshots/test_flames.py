"""Flame graphs: weights add up, and the files are what the formats' readers take."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from torch.cuda import _memory_viz

from cudamem_testing.__main__ import main
from cudamem_testing.model.stacks import Locator
from cudamem_testing.snapshots.flames import flame_of, volume
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.snapshots.record import Kind
from cudamem_testing.snapshots.replay import replay
from cudamem_testing.snapshots.snapshot_files import read_file
from suites.snapshots.allocator import MIB, Allocator

RECORDINGS = Path(__file__).parents[2] / "fixtures/recordings"
TRAINING = RECORDINGS / "training_step.pickle.gz"
#: https://www.speedscope.app/file-format-schema.json, what it says of a file with sampled profiles.
UNITS = {"none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"}


def check_speedscope(document: dict[str, Any]) -> None:
    """A reader of the format, as strict as its published schema."""
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert {*document} <= {"$schema", "shared", "profiles", "name", "activeProfileIndex", "exporter"}
    frames = document["shared"]["frames"]
    for frame in frames:
        assert {*frame} <= {"name", "file", "line", "col"}
        assert isinstance(frame["name"], str)
        assert isinstance(frame.get("file", ""), str)
        assert isinstance(frame.get("line", 0), int)
    for profile in document["profiles"]:
        assert {*profile} == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
        assert (profile["type"], profile["unit"] in UNITS) == ("sampled", True)
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= place < len(frames) for sample in profile["samples"] for place in sample)
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
    assert 0 <= document["activeProfileIndex"] < len(document["profiles"])


def read_folded(lines: list[str]) -> dict[tuple[str, ...], int]:
    """A reader of folded stacks, as flamegraph.pl takes them: names between semicolons, a space, a number."""
    found = {}
    for line in lines:
        match = re.fullmatch(r"([^;]+(?:;[^;]+)*) (\d+)", line)
        assert match is not None, line
        found[tuple(match[1].split(";"))] = int(match[2])
    assert len(found) == len(lines)
    return found


def test_live_and_volume_add_up_to_what_the_allocator_counted() -> None:
    recording = read_file(TRAINING)
    replayed = replay(recording)
    peak = replayed.peak(since=0)
    live, all_of_it = flame_of(peak.live, "live", "before"), volume(replayed, "volume")
    assert live.total == peak.total
    places = [place for place, kind in enumerate(recording.events.kinds) if kind == Kind.ALLOC]
    assert all_of_it.total == sum(replayed.sizes[place] for place in places)
    assert sum(part.blocks for part in all_of_it.parts) == len(places)


@pytest.mark.parametrize("of", ["peak", "volume", "end"])
def test_the_files_of_each_format_say_the_same(of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def written(name: str) -> str:
        assert main(["snapshot", "flamegraph", str(TRAINING), "--of", of, "-o", str(tmp_path / name)]) == 0
        return (tmp_path / name).read_text(encoding="utf-8")

    folded = read_folded(written("a.folded").splitlines())
    document = json.loads(written("a.speedscope.json"))
    check_speedscope(document)
    (profile,) = document["profiles"]
    assert sum(profile["weights"]) == sum(folded.values())
    frames = document["shared"]["frames"]
    outermost = {frames[sample[0]]["name"] for sample in profile["samples"]}
    assert outermost == {stack[0].partition(" (record")[0] for stack in folded}
    capsys.readouterr()
    assert main(["snapshot", "flamegraph", str(TRAINING), "--of", of]) == 0
    assert read_folded(capsys.readouterr().out.splitlines()) == folded
    assert main(["snapshot", "flamegraph", str(TRAINING), "--of", of, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["snapshots"]
    assert sum(stack["bytes"] for stack in one["stacks"]) == sum(folded.values())


def test_stacks_from_the_outermost_call_to_the_allocating_one() -> None:
    flame = volume(replay(read_file(TRAINING)), "volume")
    stacks = [stack for stack in read_folded([*flame.folded()]) if len(stack) > 1]
    assert {stack[0] for stack in stacks} == {"<module> (record.py:211)"}
    assert ("training_step (programs.py:47)") in {stack[-1] for stack in stacks}


def test_names_that_would_break_a_line() -> None:
    allocator = Allocator()
    frames = [{"filename": "/p/a;b.py", "line": 3, "name": "f;\n1"}, {"filename": "/p/c.py", "line": 0, "name": ""}]
    allocator.malloc(3 * MIB, frames=frames)
    flame = volume(replay(read(allocator.snapshot(), locator=Locator("/p"))), "v")
    assert [*flame.folded()] == [f"? (c.py);f:\\n1 (a:b.py:3) {3 * MIB}"]
    check_speedscope(flame.speedscope("0"))


def test_a_pickle_that_torch_loads(tmp_path: Path) -> None:
    out = tmp_path / "a.pickle"
    assert main(["snapshot", "convert", str(TRAINING), str(out)]) == 0
    loaded = pickle.loads(out.read_bytes())
    assert "Active Memory Timeline" in _memory_viz.trace_plot(loaded)
    assert "programs.py:50:training_step" in _memory_viz.memory(loaded, format_flamegraph=lambda text: text)
    assert read_file(out).allocated == read_file(TRAINING).allocated


def test_pictures_and_pages(tmp_path: Path) -> None:
    for name, begin in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.html", b"<!DOCTYPE html>")):
        assert main(["snapshot", "flamegraph", str(TRAINING), "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(begin)


def test_what_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cudamem_testing.snapshots import export

    export.write(tmp_path / "cpu.pickle", read_cpu([(1, 2, 3, 0, 0, 0)]))
    for given in (
        [TRAINING, "-o", tmp_path / "a.pdf"],
        [TRAINING, TRAINING, "-o", tmp_path / "a.folded"],
        [tmp_path / "cpu.pickle"],
    ):
        assert main(["snapshot", "flamegraph", *map(str, given)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: a.pdf: write .folded, .txt, .json (speedscope), .html, .svg or .png",
        "error: a.folded can hold the flame graph of one file: a page (.html) can hold several",
        "error: cpu.pickle has no events: write --of=end",
    ]
