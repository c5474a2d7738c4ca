"""The commands that read reports where something is in the way: a full disk, an overlong name, a closed pipe."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.model.baselines import Measured
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.checked import Checked
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.records.baselines import BASELINES
from cudamem_testing.records.known_file import PLACE
from cudamem_testing.report.report_files import write_json

CPU = Device("cpu")
LONG = "x" * 300 + ".py"


def record(file: str) -> TestRecord:
    """A test with a leak of its own and with numbers for a baseline."""
    leak = Finding(
        Kind.LEAK, Verdict.REACHABLE, Severity.FAIL, Reported("m"), 512, CPU, cause=f"leak | reachable | {file}"
    )
    measured = Measured(CPU, "here", {"requested": Spread(5, 5)}, (), ("requested",), True)
    return TestRecord(f"{file}::test_a", "error", findings=(leak,), measured=(measured,))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one test file, where a command runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_x.py").touch()
    return tmp_path


def test_an_overlong_name_does_not_stop_the_rest(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long_text = Checked(f"{LONG}::test_a", f"__cudamem__/test_x/{LONG}.txt", None, None, None, None, "text")
    text = Checked("test_x.py::test_a", "__cudamem__/test_x/test_a.txt", None, None, None, None, "text")
    write_json(RunRecord(tests=(record(LONG), record("test_x.py")), checked=(long_text, text)), project / "r.json")
    assert main(["accept", "r.json", "--known", "--baselines", "--expected"]) == 1
    known, size, refused, *rest = capsys.readouterr().out.splitlines()
    assert known == "known findings: 1 new (__cudamem__/known.jsonl was written)"
    assert size == "    512 B  leak | reachable | test_x.py (cpu)"
    assert len(refused) == 300
    assert refused.startswith("not recorded for xxx")
    missing = "File name too long" if sys.version_info < (3, 14) else "there is no such file in ."
    assert refused.endswith(f"xxx.py: {missing}")
    assert rest == [
        "1 baseline: 1 new",
        "written: __cudamem__/test_x.json",
        f"not written for {LONG}: {missing}",
        "1 expected text written",
        "    __cudamem__/test_x/test_a.txt  1",
        f"__cudamem__/test_x/{LONG}.txt: 1 text was not written: File name too long",
        f"    line 1, {LONG}::test_a:",
        "        | text",
    ]
    assert len(BASELINES.read(project / "__cudamem__/test_x.json")) == 1
    (project / PLACE).write_text(
        f'{{"cause": "leak | old", "device": "cpu", "bytes": 1, "tests": ["{LONG}::test_a"]}}\n', encoding="utf-8"
    )
    assert main(["merge", "r.json", "-o", "all.json"]) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_merge_names_the_file_for_which_there_is_no_room(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(RunRecord(tests=(record("test_x.py"),)), project / "r.json")
    assert main(["merge", "r.json", "-o", "/dev/full"]) == 2
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device: '/dev/full'\n"


def test_accept_names_the_file_for_which_there_is_no_room(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(RunRecord(tests=(record("test_x.py"),)), project / "r.json")

    def refuse(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.urandom", refuse)  # the first thing that writing needs
    assert main(["accept", "r.json", "--known"]) == 2
    assert capsys.readouterr().err == f"error: [Errno 28] No space left on device: '{project / PLACE}'\n"
    assert main(["accept", "r.json", "--baselines"]) == 1
    reason = f"[Errno 28] No space left on device: '{project}/__cudamem__/test_x.json'"
    assert capsys.readouterr().out == f"not written: {reason}\n"


@pytest.mark.subprocess
def test_a_reader_that_has_closed_the_pipe(project: Path) -> None:
    """The command ends quietly, with its own status."""
    write_json(RunRecord(tests=(record("test_x.py"),)), project / "r.json")
    for command, status in ((["explain", "reachable"], 0), (["merge", "r.json", "-o", "all.json"], 1)):
        process = subprocess.Popen(
            [sys.executable, "-m", "cudamem_testing", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stderr:
            process.stdout.close()
            assert (process.stderr.read(), process.wait(60)) == (b"", status)
    assert (project / "all.json").exists()


def test_failures_of_runs_are_shown(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By every command that reads reports; the first of many, and never more than one line each."""
    test = record("test_x.py").ended("passed")._replace(findings=())
    write_json(RunRecord(tests=(test,)), project / "a.json")
    write_json(RunRecord(tests=(test,), failures=tuple(f"test_{n}.py broke" for n in range(7))), project / "b.json")
    shown = [f"failed: test_{n}.py broke" for n in range(5)] + ["failed: 2 more"]
    named = [line.replace("test_", "b.json: test_") for line in shown]
    for command, status, lines in (
        (["report", "b.json"], 0, [*shown, "nothing was measured; 1 test without torch"]),
        (
            ["report", "b.json", "--markdown"],
            0,
            ["### Memory: The run failed", "", *(f"- failed: test_{n}.py broke" for n in range(7)), ""],
        ),
        (["compare", "a.json", "b.json"], 0, ["0 tests changed of 1 compared", *named]),
        (
            ["compare", "b.json", "a.json", "--markdown"],
            0,
            [f"- {line}" for line in ("0 tests changed of 1 compared", *named)],
        ),
        (["merge", "a.json", "b.json", "-o", "all.json"], 1, named),
        (["merge", "a.json", "-o", "all.json"], 0, ["nothing was measured; 1 test without torch"]),
    ):
        assert main(command) == status
        out = capsys.readouterr().out.splitlines()
        assert out[: len(lines)] == lines, command
