"""Snapshots as the command shows them: text, JSON, pages."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.recorders.build import Library, RecorderUnavailable
from cudamem_testing.report.snapshots.arguments import VERBS
from cudamem_testing.show.progress import Progress
from cudamem_testing.snapshots import export, native
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.snapshots.replay import DROPPED
from cudamem_testing.snapshots.segments import Piece, pieces
from cudamem_testing.snapshots.snapshot_files import read_file
from suites.report.pages import data_of
from suites.snapshots.allocator import Allocator

RECORDINGS = Path(__file__).parents[2] / "fixtures/recordings"
MIB = 2**20


def test_a_training_step_of_a_card(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    assert main(["snapshot", str(RECORDINGS / "training_step.pickle.gz")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "101.0 MiB in 28 blocks on cuda:0, 79 events, 134.0 MiB in 10 segments",
        "live at the peak: 106.0 MiB in 27 blocks",
        (
            "     5.0 MiB   3 blocks  programs.py:48 in training_step     "
            "torch/nn/modules/activation.py forward and 2 more"
        ),
        "     2.0 MiB   6 blocks  programs.py:45 in training_step     torch/nn/modules/module.py _apply",
        "   512.0 KiB   1 block   programs.py:47 in training_step     <- record.py:118",
        "       512 B   1 block   programs.py:49 in training_step     torch/autograd/__init__.py _make_grads",
        "    63.0 MiB   9 blocks  (live before the first recorded event)",
        "    35.5 MiB   7 blocks  (no Python stack: allocated by one of torch's threads, as in backward)",
        "live at the end: 101.0 MiB in 28 blocks",
        "    2.0 MiB   6 blocks  programs.py:45 in training_step     torch/nn/modules/module.py _apply",
        "    2.0 MiB   6 blocks  programs.py:50 in training_step     torch/optim/sgd.py _multi_tensor_sgd",
        "   63.0 MiB   9 blocks  (live before the first recorded event)",
        "   34.0 MiB   7 blocks  (no Python stack: allocated by one of torch's threads, as in backward)",
        (
            "main pool: 134.0 MiB reserved in 10 segments, 101.0 MiB allocated, 33.0 MiB unused "
            "(largest range 20.0 MiB, 13.0 MiB beside blocks in use)"
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", sorted(RECORDINGS.glob("torch-*-everything.pickle.gz")), ids=lambda file: file.name[:10]
)
def test_every_command_reads_what_every_torch_writes(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in VERBS:
        files = [str(file)] * (2 if verb == "diff" else 1)
        for form in ((), ("--json",), ("--html", str(tmp_path / f"{verb}.html"))):
            assert main(["snapshot", verb, *files, *form]) == 0
            assert capsys.readouterr().out.strip()
        assert (tmp_path / f"{verb}.html").stat().st_size > 1000
    assert main(["snapshot", "convert", str(file), str(tmp_path / "again.pickle")]) == 0
    assert read_file(tmp_path / "again.pickle").allocated == read_file(file).allocated


def test_without_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The remark that the recording makes itself is not made twice."""
    allocator = Allocator()
    allocator.malloc(3 * MIB)
    file = tmp_path / "a.json"
    file.write_text(json.dumps({**allocator.snapshot(), "device_traces": [[]]}))
    assert main(["snapshot", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "3.0 MiB in 1 block on cuda:0, 0 events, 20.0 MiB in 1 segment",
        "no events: the history was off, so only what is live now is known",
        "live at the end: 3.0 MiB in 1 block",
        "   3.0 MiB   1 block  (live before the first recorded event)",
        (
            "main pool: 20.0 MiB reserved in 1 segment, 3.0 MiB allocated, 17.0 MiB unused (largest "
            "range 17.0 MiB, 17.0 MiB beside blocks in use)"
        ),
    ]


def test_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allocator = Allocator()
    gone = allocator.malloc(3 * MIB)
    first, second = tmp_path / "first.pickle", tmp_path / "second.pickle"
    export.write(first, read(allocator.snapshot()))
    allocator.free(gone)
    allocator.malloc(5 * MIB)
    export.write(second, read(allocator.snapshot()))
    assert main(["snapshot", str(first), str(second), "--device=cuda:0"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "+2.0 MiB on cuda:0: 5.0 MiB in 1 block new, 3.0 MiB in 1 block gone",
        "grown",
        "   +5.0 MiB  0 B -> 5.0 MiB  0 -> 1 block  project/layer7.py:7 in forward",
        "new: 5.0 MiB in 1 block",
        "   5.0 MiB   1 block  project/layer7.py:7 in forward     torch/nn/functional.py linear",
        "gone: 3.0 MiB in 1 block",
        "   3.0 MiB   1 block  project/layer6.py:6 in forward     torch/nn/functional.py linear",
    ]


def test_notes_of_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = read_cpu([(0x10, 8, 1, 0, 0, 0)], truncated=True)
    file, note = tmp_path / "a.pickle", f"note: {DROPPED}"
    export.write(file, recording)
    assert run(capsys, "diff", file, file)[-1] == note
    assert json.loads("\n".join(run(capsys, "diff", file, file, "--json")))["snapshots"][0]["notes"] == [DROPPED]
    page = tmp_path / "diff.html"
    run(capsys, "diff", file, file, f"--html={page}")
    (shown,) = data_of(page.read_text())["files"]
    assert shown["sections"] == [{"kind": "lines", "title": "Notes", "lines": [DROPPED]}]


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.pickle"
    file.write_bytes(b"nothing")
    assert main(["snapshot", str(file)]) == 2
    assert main(["snapshot", str(tmp_path / "none.pickle")]) == 2
    file.write_text(json.dumps({"segments": []}))
    assert main(["snapshot", str(file), "--device=gpu"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: a.pickle: neither a pickle of protocol 2 to 5 nor JSON",
        "error: none.pickle cannot be read: No such file or directory",
        "error: device 'gpu' is not known: write cpu, cuda, cuda:N or host",
    ]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert main(["snapshot", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


TRAINING, OUT_OF_MEMORY = RECORDINGS / "training_step.pickle.gz", RECORDINGS / "out_of_memory.pickle.gz"


def test_the_peak_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "peak", "--top=2", TRAINING) == [
        "peak at event 53 of 79, 150.2 ms after the first",
        "live at the peak: 106.0 MiB in 27 blocks",
        "    5.0 MiB   3 blocks  programs.py:48 in training_step     torch/nn/modules/activation.py forward and 2 more",
        "    2.0 MiB   6 blocks  programs.py:45 in training_step     torch/nn/modules/module.py _apply",
        "   ... 2 more lines: 512.5 KiB",
        "   63.0 MiB   9 blocks  (live before the first recorded event)",
        "   35.5 MiB   7 blocks  (no Python stack: allocated by one of torch's threads, as in backward)",
    ]


def test_segments_with_unused_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "fragmentation", "--top=1", TRAINING)[-4:] == [
        "segments in use with unused bytes: 5",
        "   segment             size      used  largest free  pool  stream  largest line in it",
        "   0x7ff819400000  20.0 MiB  15.0 MiB       5.0 MiB  main       0  (no Python stack)",
        "   ... 4 more segments: 8.0 MiB unused",
    ]


def test_a_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "timeline", OUT_OF_MEMORY)
    assert lines[:3] == [
        "460.0 MiB at the peak, event 115 of 212",
        "event    time  allocated                                 largest line then",
        "    0    0 µs        0 B",
    ]
    assert "  115  1.5 ms  460.0 MiB  ████████████████████████ peak  460.0 MiB  programs.py:26 in _bytes" in lines
    assert len(lines) <= 2 + 26


def test_several_files_are_shown_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "peak", TRAINING, OUT_OF_MEMORY)
    assert lines[0] == "training_step.pickle.gz"
    assert lines[lines.index("") + 1] == "out_of_memory.pickle.gz"


def test_a_snapshot_without_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(Allocator().snapshot()))
    assert run(capsys, "peak", file)[0] == "the peak is unknown: no events were recorded"
    assert run(capsys, "timeline", file) == ["no events were recorded: there is no timeline"]
    assert run(capsys, "fragmentation", file) == ["cuda:0 has no segments here: nothing can be fragmented"]


def test_json_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Every verb's numbers are those of its text, to the byte."""
    found = {
        verb: json.loads("\n".join(run(capsys, verb, TRAINING, "--json")))
        for verb in ("show", "fragmentation", "timeline")
    }
    for verb, document in found.items():
        assert (document["schema"], document["kind"], document["command"]) == (1, "snapshot", verb)
    (one,) = found["show"]["snapshots"]
    assert (one["file"], one["device"], one["allocated"], one["events"]) == (TRAINING.name, "cuda:0", 105_930_240, 79)
    assert one["peak"]["event"] == 53
    for part in (one["peak"], one["end"]):
        assert sum(line["bytes"] for line in part["lines"]) == part["bytes"]
        assert sum(line["blocks"] for line in part["lines"]) == part["blocks"]
    assert one["peak"]["lines"][0]["at"] == ["programs.py", 48, "training_step"]
    (pool,) = found["fragmentation"]["snapshots"][0]["pools"]
    assert pool["allocated"] + pool["waiting"] + pool["unused"] == pool["reserved"] == one["reserved"]
    timeline = found["timeline"]["snapshots"][0]["timeline"]
    assert timeline["allocated"][timeline["peak"]] == one["peak"]["bytes"]
    columns = zip(*(line["bytes"] for line in timeline["lines"]), strict=True)
    assert [sum(column) for column in columns] == timeline["allocated"]


def test_a_difference_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = json.loads("\n".join(run(capsys, "diff", "--json", TRAINING, OUT_OF_MEMORY)))["snapshots"]
    assert one["growth"] == one["new"]["bytes"] - one["gone"]["bytes"] == 257_957_888 - 105_930_240
    assert one["grown"][0] | {"by": 0} == {
        "line": "programs.py:26 in _bytes",
        "by": 0,
        "before": 0,
        "after": 230 * MIB,
        "blocks_before": 0,
        "blocks_after": 46,
    }


def test_a_page_has_the_sections_of_its_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {}
    for verb in ("show", "peak", "fragmentation", "timeline"):
        assert run(capsys, verb, OUT_OF_MEMORY, "--html", tmp_path / "a.html") == [f"written to {tmp_path / 'a.html'}"]
        (file,) = data_of((tmp_path / "a.html").read_text(encoding="utf-8"))["files"]
        kinds[verb] = [one["kind"] for one in file["sections"]]
    assert kinds == {
        "show": ["curve", "flame", "table", "table", "map", "table", "table"],
        "peak": ["curve", "flame", "table"],
        "fragmentation": ["map", "table", "table"],
        "timeline": ["curve"],
    }
    run(capsys, "diff", TRAINING, OUT_OF_MEMORY, "--html", tmp_path / "a.html")
    (file,) = data_of((tmp_path / "a.html").read_text(encoding="utf-8"))["files"]
    assert [one["kind"] for one in file["sections"]] == ["pairs", "flame", "flame"]


def test_a_page_without_a_picture_says_what_the_command_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, bare = tmp_path / "a.html", written(tmp_path / "bare.pickle", [])
    told = {
        ("churn", OUT_OF_MEMORY): "0 of 94 allocations on cuda:0 were freed again at once, in a loop",
        ("timeline", bare): "no events were recorded: there is no timeline",
        ("fragmentation", bare): "cuda:0 has no segments here: nothing can be fragmented",
    }
    for (verb, file), line in told.items():
        run(capsys, verb, file, "--html", page)
        (one,) = data_of(page.read_text(encoding="utf-8"))["files"]
        assert [each["title"] for each in one["sections"]] == ["Nothing to draw"]
        assert one["sections"][0]["lines"][0] == line


def test_the_map_of_segments_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where small neighbours were joined: no byte is lost."""
    for recording in (OUT_OF_MEMORY, RECORDINGS / "random_small.pickle.gz"):
        found = read_file(recording)
        assert sum(one.size for one in pieces(found)) == found.reserved
    free = {0: 0, 1: 0}
    for one in pieces(read_file(TRAINING)):
        free[0] += one.size if one.line == Piece.FREE else 0
        free[1] += one.size if one.line == Piece.RETURNABLE else 0
    assert free == {0: 13_621_760, 1: 20 * MIB}  # some small blocks and gaps were joined


def test_a_file_without_a_verb_may_be_called_like_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("peak").write_bytes(TRAINING.read_bytes())
    assert run(capsys, "./peak")[0].startswith("101.0 MiB in 28 blocks")
    assert run(capsys, "show", "peak")[0].startswith("101.0 MiB in 28 blocks")


def test_wrong_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    export.write(tmp_path / "cpu.pickle", read_cpu([(1, 2, 3, 0, 0, 0)]))
    assert main(["snapshot", str(TRAINING), str(TRAINING), str(TRAINING)]) == 2
    assert main(["snapshot", "diff", str(TRAINING), str(tmp_path / "cpu.pickle")]) == 2
    for wrong in (["diff", str(TRAINING)], ["peak", str(TRAINING), "--top=-1"], ["peak", ""], ["peak"]):
        with pytest.raises(SystemExit):
            main(["snapshot", *wrong])
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert errors[:2] == [
        "error: snapshot without a verb takes one file or two, not 3: write snapshot show",
        "error: training_step.pickle.gz is of cuda:0, cpu.pickle of cpu",
    ]
    assert [line.partition("error: ")[2] for line in errors[2:]] == [
        "the following arguments are required: FILE",
        "argument --top: '-1' is not a number of rows: write 1 or more",
        "argument FILE: the path is empty",
        "the following arguments are required: FILE",
    ]


def test_progress_is_shown_of_long_work_only() -> None:
    said: list[str] = []
    now = [0.0]
    progress = Progress(said.append, lambda: now[0])
    progress.step("reading a (1.0 GiB)", long=True)
    for share in (0.1, 0.2, 0.3, 0.9):
        now[0] += 0.7
        progress.at(share)
    progress.step("replaying", long=False)
    progress.at(0.5)
    assert said == ["reading a (1.0 GiB)", "reading a (1.0 GiB): 30 %"]


def unavailable(library: Library) -> None:
    raise RecorderUnavailable("no compiler")


def test_a_large_file_tells_that_its_reader_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDAMEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_WORTH_A_CALL", 1)
    monkeypatch.setattr(native, "_WORTH_COMPILING", 1)
    monkeypatch.setattr(native, "compiled", lambda progress, library: progress("compiling the reader"))
    monkeypatch.setattr(native, "load", unavailable)
    native.loaded.cache_clear()
    assert main(["snapshot", "peak", str(TRAINING)]) == 0
    assert capsys.readouterr().err.splitlines() == ["... compiling the reader"]
    native.loaded.cache_clear()


def test_reading_tells_its_progress() -> None:
    shares: list[float] = []
    read_file(RECORDINGS / "random_small.pickle.gz", progress=shares.append)
    assert shares[0] == 0.0
    assert shares == sorted(shares)


def test_why_memory_ran_out(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "why", "--capacity=512MiB", "--with", "roundup_power2_divisions:4", OUT_OF_MEMORY)
    assert lines[0] == "out of memory on cuda:0: 200.0 MiB requested by programs.py:26 in _bytes"
    assert "   90.0 MiB  18 blocks  programs.py:26 in _bytes          allocated 2.6 ms to 3.1 ms before" in lines
    assert lines[-6:] == [
        "none of these changes makes room for the request",
        "peak reserved with each change",
        (
            "   expandable_segments:True,garbage_collection_threshold:0.99  482.0 MiB instead of 478.0 MiB  "
            "the request does not fit: the largest free range is 5.0 MiB"
        ),
        (
            "   max_split_size_mb:32,garbage_collection_threshold:0.99      478.0 MiB, as recorded          "
            "the request does not fit: the largest free range is 5.0 MiB"
        ),
        (
            "   roundup_power2_divisions:4                                  478.0 MiB, as recorded          "
            "the request does not fit: the largest free range is 5.0 MiB"
        ),
        (
            "187 events replayed on a model of the allocator; with the recorded settings it reserves 478.0 MiB, "
            "478.0 MiB were recorded"
        ),
    ]
    assert run(capsys, OUT_OF_MEMORY)[-1] == (
        "out of memory on cuda:0: 200.0 MiB requested by programs.py:26 in _bytes: "
        "see snapshot why out_of_memory.pickle.gz"
    )


def test_why_as_json_and_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = json.loads("\n".join(run(capsys, "why", "--json", OUT_OF_MEMORY)))["snapshots"]
    assert (one["why"]["requested"], one["why"]["largest_free"]) == (200 * MIB, 5 * MIB)
    assert one["why"]["capacity"] == {"least": 478 * MIB, "below": 678 * MIB, "limit_of_torch": True}
    largest = one["why"]["in_the_way"][0]
    assert (largest["line"], largest["blocks"]) == ("programs.py:26 in _bytes", 20)
    assert one["what_if"]["answers"][0]["with"] == "expandable_segments:True,garbage_collection_threshold:0.99"
    assert (one["what_if"]["recorded"], one["what_if"]["best"]) == (478 * MIB, None)
    run(capsys, "why", OUT_OF_MEMORY, "--html", tmp_path / "a.html")
    (file,) = data_of((tmp_path / "a.html").read_text(encoding="utf-8"))["files"]
    assert [one["kind"] for one in file["sections"]] == ["text", "table", "table", "table", "map", "table"]


def test_why_without_a_failure_or_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "why", TRAINING)
    assert lines[0] == "no request failed in training_step.pickle.gz"
    assert lines[-1].endswith(
        "63.0 MiB were live before the first event: where they would lie is unknown, so settings are tried with them "
        "in a row, and as they lay"
    )
    export.write(tmp_path / "cpu.pickle", read_cpu([(1, 2, 3, 0, 0, 0)]))
    assert run(capsys, "why", tmp_path / "cpu.pickle")[0] == (
        "what other settings would have changed is unknown: "
        "cpu has no caching allocator: there is nothing to ask the model"
    )


def test_fragmentation_of_each_stream_and_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "fragmentation", "--request=16MiB", RECORDINGS / "several_streams.pickle.gz")
    assert lines[1:4] == [
        "pool      stream  reserved    unused  largest free  fragmentation",
        "main  1179679840  52.0 MiB  18.1 MiB      14.4 MiB           21 %",
        "main  1179735168  52.0 MiB  18.1 MiB      14.4 MiB           21 %",
    ]
    assert lines[5] == (
        "a request of 16.0 MiB on stream 1179679840 does not fit: largest free range 14.4 MiB of 18.1 MiB unused; "
        "empty_cache() would return 0 B"
    )


def written(path: Path, segments: list[object], *traces: list[object]) -> Path:
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [*traces]}, 4))
    return path


def test_a_card_that_the_file_does_not_know_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 1}
    file = written(tmp_path / "one.pickle", [], [event], [])
    assert main(["snapshot", "show", str(file), "--device", "cuda:7"]) == 2
    assert capsys.readouterr().err == "error: one.pickle: the snapshot is not of cuda:7: it is of cuda:0\n"
    assert (
        run(capsys, "show", file, "--device", "cuda:1")[0] == "0 B in 0 blocks on cuda:1, 0 events, 0 B in 0 segments"
    )


def test_a_peak_that_is_older_than_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = {"action": "free_requested", "addr": 512, "size": 512, "stream": 0, "time_us": 1}
    file = written(tmp_path / "freed.pickle", [], [event])
    assert run(capsys, "peak", file)[0] == "peak before the first of 1 event"


def test_churn_without_events_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "churn", written(tmp_path / "none.pickle", [])) == ["churn is unknown: no events were recorded"]
    event = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 1}
    one = run(capsys, "churn", written(tmp_path / "one.pickle", [], [event]))
    assert one == ["0 of 1 allocation on cuda:0 was freed again at once, in a loop"]


def test_two_files_in_the_wrong_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = {"action": "alloc", "addr": 512, "size": 512, "stream": 0}
    first = written(tmp_path / "first.pickle", [], [{**event, "time_us": 5}])
    second = written(tmp_path / "second.pickle", [], [{**event, "time_us": 9}])
    assert main(["snapshot", "diff", str(second), str(first)]) == 0
    note = "note: first.pickle was taken before second.pickle: name the earlier one first\n"
    assert capsys.readouterr().err == note
    assert main(["snapshot", "diff", str(first), str(second)]) == 0
    assert capsys.readouterr().err == ""


def test_churn_of_a_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = RECORDINGS / "random_small.pickle.gz"
    lines = run(capsys, "churn", file)
    assert lines[0] == "89 of 164 allocations on cuda:0 were freed again at once, in a loop"
    (one,) = json.loads("\n".join(run(capsys, "churn", "--json", file)))["snapshots"]
    assert sum(row["soon"] for row in one["churn"]) == 89
    run(capsys, "churn", file, "--html", tmp_path / "a.html")
    (page,) = data_of((tmp_path / "a.html").read_text(encoding="utf-8"))["files"]
    assert [section["kind"] for section in page["sections"]] == ["table"]
