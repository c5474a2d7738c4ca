"""A look at a file, as the command prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.snapshots import export
from cudamem_testing.snapshots.read import read
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
        "    63.0 MiB   9 blocks  (live before the test)",
        "    35.5 MiB   7 blocks  (no Python stack: allocated by one of torch's threads, as in backward)",
        "live at the end: 101.0 MiB in 28 blocks",
        "    2.0 MiB   6 blocks  programs.py:45 in training_step     torch/nn/modules/module.py _apply",
        "    2.0 MiB   6 blocks  programs.py:50 in training_step     torch/optim/sgd.py _multi_tensor_sgd",
        "   63.0 MiB   9 blocks  (live before the test)",
        "   34.0 MiB   7 blocks  (no Python stack: allocated by one of torch's threads, as in backward)",
        (
            "main pool: 134.0 MiB reserved in 10 segments, 101.0 MiB allocated, 33.0 MiB unused "
            "(largest range 20.0 MiB, 13.0 MiB beside blocks in use)"
        ),
    ]


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
        "   3.0 MiB   1 block  (live before the test)",
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
