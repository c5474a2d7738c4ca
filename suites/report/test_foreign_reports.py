"""Reports of others: control characters in their ids, notes and findings reach no terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.model.baselines import Measured
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.records import Environment, LedgerEntry, RunRecord, TestRecord, Unchecked
from cudamem_testing.model.windows import Window
from cudamem_testing.report.schema import run_to_json

CPU = Device("cpu")
HOSTILE = "x\x1b[2J\x1b]0;PWNED\x07\rFORGED\u202e\x9b1m\ud800"
PLAIN = "größe東"


def report(word: str, requested: int) -> dict[str, Any]:
    finding = Finding(
        Kind.LEAK, Verdict.REACHABLE, Severity.FAIL, Reported("leaked"), 8, CPU, word, word, f"leak | {word}"
    )
    values = {"requested": Spread.of(requested)}
    test = TestRecord(
        f"{word}.py::test_{word}",
        "passed",
        windows=(Window("call", CPU, 0, requested, 0, notes=(word,)),),
        findings=(finding,),
        measured=(Measured(CPU, f"env {word}", values, metrics=("requested",)),),
    )
    run = RunRecord(
        Environment((f"cpu {word}",), f"2.13 {word}", word),
        (test,),
        notes=(f"note {word}", "", f"two\nlines {word}"),
        unenforced={f"because {word}": 1},
        unchecked={Unchecked(word, word): 1, Unchecked("check", word): 2},
        ledger=(LedgerEntry("cpu", word, 1, 1),),
    )
    data = run_to_json(run)
    data["tests"][0]["findings"][0].update(message=f"leaked {word}", details=[f"   {word}"])
    return data


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What each command prints for reports with a word in every text."""
    monkeypatch.chdir(tmp_path)

    def run(word: str) -> dict[str, str]:
        for name, requested in (("a.json", 2**20), ("b.json", 2**21)):
            Path(name).write_text(json.dumps(report(word, requested)), encoding="utf-8")
        commands = {
            "report": ["report", "a.json"],
            "markdown": ["report", "a.json", "--markdown"],
            "compare": ["compare", "a.json", "b.json"],
            "compare markdown": ["compare", "a.json", "b.json", "--markdown"],
            "merge": ["merge", "a.json", "b.json", "-o", "c.json"],
            "accept": ["accept", "a.json"],
            "wrong": ["compare", "a.json", "b.json", "--fail-on", f"{word}:1"],
        }
        texts = {}
        for name, command in commands.items():
            main(command)
            captured = capsys.readouterr()
            texts[name] = captured.out + captured.err
        return texts

    return run


def test_every_command_spells_control_characters_out(said: Any) -> None:
    for name, text in said(HOSTILE).items():
        assert [char for char in text if not char.isprintable() and char != "\n"] == [], name
        assert r"e\x9b1m\ud800" in text.replace("\\\\", "\\"), name  # the end is kept where a column is narrow
        assert not [line for line in text.splitlines() if line.startswith("FORGED")], name


def test_plain_words_are_printed_as_they_are(said: Any) -> None:
    for name, text in said(PLAIN).items():
        assert PLAIN in text, name


def test_notes_of_several_lines_and_empty_ones(said: Any) -> None:
    assert f"note: two\n  lines {PLAIN}\n" in said(PLAIN)["report"]
