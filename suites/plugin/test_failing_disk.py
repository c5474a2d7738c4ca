"""Runs whose disk is full or read-only, and runs that are killed while they write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cudamem_testing.show.atomic_files import TEMPORARY
from suites.disk import Disk, Fault, Killed, contents

TESTS = """
    import pytest, torch

    KEPT = []

    @pytest.mark.memory_baseline
    def test_passes():
        torch.ones(1024)

    def test_leaks():
        KEPT.append(torch.ones(2**18))

    def test_fails():
        assert torch.ones(2**18).sum() == 1

    def test_text(memory_profile):
        memory_profile(torch.ones, 8).assert_data_flow()
"""
OPTIONS = (
    *("--cudamem", "--cudamem-update", "--cudamem-json=out/r.json", "--cudamem-html=out/r.html"),
    *("--cudamem-dump=dumps", "-p", "no:cacheprovider"),
)
#: What is written, and what is said in the place of each that is not.
WRITTEN = {
    "__cudamem__/test_it.json": "note: not written: {error}",
    "__cudamem__/known.jsonl": "known findings were not written: {error}",
    "__cudamem__/test_it/test_text.txt": "test_text.txt: 1 text was not written: ",
    "out/r.json": "the report was not written to {folder}/out/r.json: {error}",
    "out/r.html": "the report was not written to {folder}/out/r.html: {error}",
    "dumps/test_it.test_fails.cpu.pickle": "test_it.test_fails.cpu.pickle was not written: OSError: {error}",
}


def check(run_inner, folder: Path, fault: Fault, first: int) -> None:
    """Run the tests from an empty folder on such a disk, and check what is there and what is said."""
    for name in contents(folder):
        if name != "test_it.py":
            (folder / name).unlink()
    for one in ("__cudamem__/test_it", "__cudamem__", "out", "dumps"):
        if (folder / one).exists():
            (folder / one).rmdir()
    with Disk(folder, fault, first).working() as disk:
        try:
            inner = run_inner({}, *OPTIONS)
        except Killed:
            inner = None
    found = contents(folder)
    left = {name for name in found if name.endswith(TEMPORARY)}
    assert {*found} - left <= {*WRITTEN, "test_it.py"}, disk.steps
    assert all(found[name] for name in found if name not in left)
    if fault is Fault.KILLED:
        return
    assert inner is not None
    text = " ".join((inner.out + inner.err).split())
    assert inner.last == "1 failed, 3 passed", text
    assert inner.outcomes == {
        "test_passes": "passed",
        "test_leaks": "passed",
        "test_fails": "failed",
        "test_text": "passed",
    }, text
    assert "INTERNALERROR" not in text
    assert "Traceback" not in text
    for name, said in WRITTEN.items():
        error = f"[Errno {fault.value[0]}] {os.strerror(fault.value[0] or 0)}"
        line = said.format(error=error, folder=folder)
        assert (name in found) is (line not in text), (name, first, disk.steps[first], text)


@pytest.fixture
def steps(run_inner, pytester: pytest.Pytester) -> list[str]:
    """The steps of a run on a disk that works."""
    run_inner(TESTS, "--collect-only")
    with Disk(pytester.path).working() as disk:
        inner = run_inner({}, *OPTIONS)
    assert inner.last == "1 failed, 3 passed"
    assert {*contents(pytester.path)} == {*WRITTEN, "test_it.py"}
    return disk.steps


def test_tests_keep_their_outcomes(run_inner, pytester) -> None:
    run_inner(TESTS, "--collect-only")
    check(run_inner, pytester.path, Fault.FULL, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"), [(Fault.FULL, "open"), (Fault.READ_ONLY, "rename"), (Fault.KILLED, "rename")]
)
def test_each_file_may_fail(run_inner, pytester, steps, fault: Fault, kind: str) -> None:
    """From each file on; suites/test_failing_disk.py has every step of one file."""
    for first, step in enumerate(steps):
        if step.startswith(f"{kind} "):
            check(run_inner, pytester.path, fault, first)


def test_a_passing_run_fails_if_its_records_cannot_be_written(run_inner, pytester) -> None:
    files = {"test_it.py": "import torch\ndef test_passes(): torch.ones(8)"}
    run_inner(files, "--collect-only")
    with Disk(pytester.path, Fault.FULL, 0).working():
        inner = run_inner({}, "--cudamem", "--cudamem-json=r.json", "-p", "no:cacheprovider")
    assert inner.status == pytest.ExitCode.TESTS_FAILED
    assert inner.last == "1 passed"
    assert inner.out.count("No space left on device") == 1
