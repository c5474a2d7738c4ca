"""Report files: whole or untouched, and an error that names the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cudamem_testing.model.records import Environment, RunRecord
from cudamem_testing.report.files import read_json, write_json
from cudamem_testing.report.schema import run_to_json

RUN = RunRecord(Environment(("cpu",), "2.13.0", "native"), notes=("grüße",))


def test_round_trip(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "report.json"
    write_json(RUN, target)
    assert read_json(target) == RUN
    assert json.loads(target.read_text(encoding="utf-8")) == run_to_json(RUN)
    assert target.read_text(encoding="utf-8").endswith("}\n")
    assert [path.name for path in target.parent.iterdir()] == ["report.json"]


def test_an_older_report_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    write_json(RunRecord(), target)
    write_json(RUN, target)
    assert read_json(target) == RUN


@pytest.mark.parametrize("fault", ["write", "replace"])
def test_a_crash_in_the_middle_leaves_the_older_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    target = tmp_path / "report.json"
    write_json(RUN, target)

    def crash(*arguments: object, **named: object) -> None:
        if fault == "write":
            with open(str(arguments[0]), "w", encoding="utf-8") as half:
                half.write('{"schema"')
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "open" if fault == "write" else "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_json(RunRecord(), target)
    monkeypatch.undo()
    assert read_json(target) == RUN
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError):
        write_json(RUN, tmp_path / "file" / "report.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_json(RUN, tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_the_file_has_the_rights_that_any_new_file_has(tmp_path: Path) -> None:
    write_json(RUN, tmp_path / "report.json")
    (tmp_path / "other").touch()
    assert (tmp_path / "report.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "report.json").symlink_to(tmp_path / "deep" / "real.json")
    write_json(RUN, tmp_path / "report.json")
    assert (tmp_path / "report.json").is_symlink()
    assert read_json(tmp_path / "deep" / "real.json") == RUN


def test_the_longest_name(tmp_path: Path) -> None:
    name = "r" * (os.pathconf(tmp_path, "PC_NAME_MAX") - 5) + ".json"
    write_json(RUN, tmp_path / name)
    assert read_json(tmp_path / name) == RUN


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b'{"schema": 1', "Expecting ',' delimiter: line 1 column 13 (char 12)"),
        (b"[]", "the top level is no object"),
        (b"null", "the top level is no object"),
        (b"{}", "not a report of schema 1: schema None, kind None"),
        (b'{"schema": 1, "kind": "report"}', "environment is missing"),
        (b"\xff\xfe", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"[" * 100_000, "nested too deeply for a report"),
    ],
)
def test_a_file_that_is_no_report_is_named_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    target = tmp_path / "report.json"
    target.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read_json(target)
    assert str(caught.value) == f"{target}: {reason}"
    assert target.read_bytes() == content


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")
