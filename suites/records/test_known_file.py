"""The file of known findings and the commands around it: what a report says is recorded as the run would have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.model.causes import causes
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Standing, Verdict
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.records.known import Evidence, KnownFinding, named, parse, recorded
from cudamem_testing.records.known_file import PLACE, accept, change_known
from cudamem_testing.records.store import RecordError
from cudamem_testing.report.failures import notes
from cudamem_testing.report.report_files import write_json
from cudamem_testing.show.places import name_of
from cudamem_testing.show.printable import LONGEST_LINE

CAUSE = "leak | reachable | a.py::f | module a > KEPT (list)[*]"
ROOT = Path(__file__).parents[2]


def report(size: int = 512, severity: Severity = Severity.FAIL, standing: Standing | None = None) -> RunRecord:
    card, fact = Device("cuda", 0), Reported("m")
    finding = Finding(Kind.LEAK, Verdict.REACHABLE, severity, fact, size, card, cause=CAUSE, standing=standing)
    return RunRecord(tests=(TestRecord("tests/test_a.py::test_b[1]", "failed", findings=(finding,)),))


def lines(path: Path) -> list[KnownFinding]:
    return [*parse("k", path.read_bytes()).values()]


EXPECTED = KnownFinding(CAUSE, "cuda", 512, ("tests/test_a.py::test_b",))


class TestAccept:
    """The command, on a machine without the card."""

    @pytest.fixture(autouse=True)
    def module(self, tmp_path: Path) -> None:
        """The test's file, without which nothing is recorded."""
        path = tmp_path / "tests" / "test_a.py"
        path.parent.mkdir()
        path.touch()

    @pytest.mark.parametrize(
        ("severity", "standing"),
        [
            (Severity.FAIL, None),
            (Severity.WARN, None),
            (Severity.NOTE, Standing.KNOWN),
            (Severity.FAIL, Standing.LARGER),
        ],
    )
    def test_what_a_report_has_is_recorded(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], severity: Severity, standing: Standing | None
    ) -> None:
        write_json(report(512, severity, standing), tmp_path / "report.json")
        arguments = ["accept", str(tmp_path / "report.json"), "--known", "--root", str(tmp_path)]
        assert main(arguments) == 0
        assert capsys.readouterr().out == (
            "known findings: 1 new (__cudamem__/known.jsonl was written)\n"
            "    512 B  leak | reachable | a.py::f | module a > KEPT (list)[*] (cuda)\n"
        )
        assert lines(tmp_path / PLACE) == [EXPECTED]
        assert main(arguments) == 0
        assert capsys.readouterr().out == "known findings: 1 the same (__cudamem__/known.jsonl is unchanged)\n"

    def test_nothing_is_lowered_or_dropped_and_reasons_stay(self, tmp_path: Path) -> None:
        path = tmp_path / "k"
        old = KnownFinding(CAUSE, "cuda", 2**20, ("tests/test_a.py::test_z",), "why")
        path.write_text(f"{old}\n{KnownFinding('other', 'cpu', 1)}\n")
        accept(path, "k", tmp_path, causes(report()))
        both = ("tests/test_a.py::test_b", "tests/test_a.py::test_z")
        assert lines(path) == [KnownFinding(CAUSE, "cuda", 2**20, both, "why"), KnownFinding("other", "cpu", 1)]

    def test_new_ones_are_named_and_recorded_only_where_asked_for(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_json(report(), tmp_path / "report.json")
        known = tmp_path / "faults" / "old.jsonl"
        command = ["accept", str(tmp_path / "report.json"), "--known-file", str(known), "--root", str(tmp_path)]
        cause = "leak | reachable | a.py::f | module a > KEPT (list)[*] (cuda)"
        assert main(command) == 0
        assert capsys.readouterr().out.splitlines() == [
            "known findings: 1 cause not recorded (--known records it):",
            f"    512 B  {cause}",
            "no baseline",
            "no expected text has changed",
        ]
        assert not known.parent.exists()
        assert main([*command, "--known"]) == 0
        said = ["known findings: 1 new (faults/old.jsonl was written)", f"    512 B  {cause}"]
        assert capsys.readouterr().out.splitlines() == said
        assert lines(known) == [EXPECTED]
        assert main(command) == 0  # nothing is new
        assert capsys.readouterr().out.splitlines() == ["no baseline", "no expected text has changed"]
        write_json(report(2**20), tmp_path / "report.json")
        assert main(command) == 0
        assert capsys.readouterr().out.splitlines()[1] == f"    512 B to 1.0 MiB  {cause}"
        assert lines(known) == [EXPECTED]

    def test_a_long_cause_is_recorded_whole_and_shown_short(self, tmp_path: Path) -> None:
        (found,) = causes(report())
        text = f"leak | {'very ' * 1000}long"
        accepted = accept(tmp_path / "k", "k", tmp_path, [replace(found, text=text)])
        (line,) = lines(tmp_path / "k")
        assert line.cause == text
        last = str(accepted).splitlines()[1]
        assert (last.lstrip()[-10:], len(last)) == ("ong (cuda)", LONGEST_LINE)
        (note,) = notes(RunRecord(unseen=named([line], "--cudamem-prune")))
        assert (note[-10:], len(note.splitlines()[1])) == ("ong (cuda)", LONGEST_LINE)

    def test_only_baselines(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_json(report(), tmp_path / "report.json")
        assert main(["accept", str(tmp_path / "report.json"), "--baselines", "--root", str(tmp_path)]) == 0
        assert "known" not in capsys.readouterr().out
        assert not (tmp_path / PLACE).exists()

    def test_a_broken_file_is_an_error_and_stays(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_json(report(), tmp_path / "report.json")
        (tmp_path / "k").write_text("[]\n")
        command = ["accept", str(tmp_path / "report.json"), "--known-file", str(tmp_path / "k")]
        for only in ([], ["--known"]):
            assert main([*command, *only]) == 2
            assert capsys.readouterr() == ("", f"error: {tmp_path / 'k'}:1: is no object\n")  # before anything else
        assert (tmp_path / "k").read_text() == "[]\n"

    def test_in_another_folder_nothing_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What is of no test, such as what the run itself left, is recorded anywhere."""
        write_json(report(), tmp_path / "report.json")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "other").mkdir()
        assert main(["accept", "report.json", "--known", "--root", "other"]) == 1
        assert capsys.readouterr().out.splitlines() == [
            "known findings: none (__cudamem__/known.jsonl is unchanged)",
            "not recorded for tests/test_a.py: there is no such file in other",
        ]
        assert [*tmp_path.rglob("__cudamem__")] == []
        assert main(["accept", "report.json", "--known", "--root", "typo"]) == 1
        assert [*tmp_path.glob("typo")] == []
        first, *_ = report().tests
        write_json(RunRecord(tests=(first, first._replace(nodeid="gone.py::test_c"))), tmp_path / "report.json")
        assert main(["accept", "report.json", "--known"]) == 0  # one of its tests is here
        write_json(RunRecord(findings=first.findings), tmp_path / "report.json")
        assert main(["accept", "report.json", "--known", "--root", "other"]) == 0
        assert [known.read_text() for known in sorted(tmp_path.rglob("known.jsonl"))] == [
            f"{KnownFinding(CAUSE, 'cuda', 512, ('gone.py::test_c', 'tests/test_a.py::test_b'))}\n",
            f"{KnownFinding(CAUSE, 'cuda', 512)}\n",
        ]

    @pytest.mark.parametrize("option", ["--known-file", "--root"])
    def test_an_empty_path_is_a_wrong_argument(self, option: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["accept", "report.json", f"{option}="])
        assert caught.value.code == 2
        assert capsys.readouterr().err.splitlines()[-1].endswith(f"argument {option}: the path is empty")


class TestReport:
    """The command that prints a report."""

    def test_markdown(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_json(report(), tmp_path / "report.json")
        assert main(["report", str(tmp_path / "report.json"), "--markdown"]) == 0
        place = "`a.py::f | module a > KEPT (list)[*]` in `tests/test_a.py::test_b[1]`"
        assert f"- **512 B in 1 finding**, reachable: {place}\n" in capsys.readouterr().out

    def test_text(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_json(report(), tmp_path / "report.json")
        assert main(["report", str(tmp_path / "report.json")]) == 0
        assert capsys.readouterr().out.splitlines()[:2] == [
            "tests/test_a.py::test_b[1]: m",
            "leak: 1 finding (reachable) in 1 test",
        ]

    def test_no_report(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "report.json").write_text("{}")
        assert main(["report", str(tmp_path / "report.json")]) == 2
        assert "not a report of schema 1" in capsys.readouterr().err


def test_names(tmp_path: Path) -> None:
    assert name_of(tmp_path / "a" / "b", tmp_path) == "a/b"
    assert name_of(Path("/elsewhere/b"), tmp_path) == "/elsewhere/b"


def test_what_is_broken_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_bytes(b"\xff\n")
    with pytest.raises(RecordError, match=r"^k:1: is not UTF-8 text$"):
        change_known(path, "k", lambda known: recorded(known, causes(report()), Evidence()))
    assert path.read_bytes() == b"\xff\n"
