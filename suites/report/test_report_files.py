"""Report files: whole or untouched, and an error that names the file."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.records import Environment, RunRecord, TestRecord
from cudamem_testing.model.windows import Window
from cudamem_testing.report.report_files import json_pieces, read_json, write_json
from cudamem_testing.report.schema import run_to_json

RUN = RunRecord(Environment(("cpu",), "2.13.0", "native"), notes=("grüße",))


def test_round_trip(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "report.json"
    write_json(RUN, target)
    assert read_json(target) == RUN
    assert json.loads(target.read_text(encoding="utf-8")) == run_to_json(RUN)
    assert target.read_text(encoding="utf-8").endswith("}\n")
    assert [path.name for path in target.parent.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"a": {}, "b": []},
        {"a": [], "b": {"c": {}, "d": [1, "x\ny", None]}, "e": {"ü": {"f": []}}},
        {"tests": [{"a": 1, "b": [{"c": 2}]}, {}], "run": {"x": [[]], "y": {"z": "[\n]"}}, "last": 1.5},
    ],
)
def test_pieces_are_the_text_of_the_whole(document: dict[str, object]) -> None:
    def lazy(value: object) -> object:
        if isinstance(value, dict):
            return {key: lazy(one) for key, one in value.items()}
        return iter(value) if isinstance(value, list) else value

    expected = json.dumps(document, indent=1)
    assert "".join(json_pieces(document)) == expected
    assert "".join(json_pieces(lazy(document))) == expected


def test_a_large_report_is_written_piece_by_piece(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Writing takes memory for a few tests, not for all of them again."""
    windows = tuple(Window(name, Device("cpu"), *range(9)) for name in ("setup", "call", "teardown"))
    tests = [TestRecord(f"test_a.py::test_{number}", "passed", 1, windows, windows[:1]) for number in range(300)]
    run = RUN._replace(tests=tuple(tests))
    write_json(run._replace(tests=run.tests[:1]), tmp_path / "one.json")  # what is made once
    tracemalloc.start()
    try:
        write_json(run, tmp_path / "report.json")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = (tmp_path / "report.json").stat().st_size
    figure(f"a report of {size / 2**10:.0f} KiB is written with {most / 2**10:.0f} KiB")
    assert size > 400 * 2**10
    assert most < 150 * 2**10


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
