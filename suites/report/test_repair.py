"""``doctor --fix``: what it does, what it leaves alone, and what it says."""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path

import pytest

import cudamem_testing
from cudamem_testing import torch_api
from cudamem_testing.__main__ import main
from cudamem_testing.recorders import build, cache
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.report import commands
from cudamem_testing.report.repair import ALWAYS, OPTIONAL, Repaired, repair
from cudamem_testing.show.tables import Column, Table

PREFIX = "cudamem_testing."


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with files that killed processes left, and an empty cache, on a machine with a quick compiler."""
    monkeypatch.setenv("CUDAMEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "find_compiler", lambda environ: ["c++"])
    monkeypatch.setattr(build, "_run_compiler", lambda command: Path(command[-1]).write_bytes(b"library"))
    monkeypatch.setattr(torch_api, "cuda_device_count", lambda: 0)
    monkeypatch.setattr(cache, "_temporary", list)
    old = (
        *("__cudamem__/.known.jsonl.12345678.cudamem.tmp", "a/__cudamem__/.test_a.json.12345678.cudamem.tmp"),
        *(".venv/.x.12345678.cudamem.tmp", "__cudamem__/known.jsonl", "notes.cudamem.tmp"),
    )
    for name in (*old, "__cudamem__/.known.jsonl.87654321.cudamem.tmp"):
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        if name in old:
            os.utime(path, (0, 0))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_what_is_fixed(project: Path) -> None:
    first = repair(Path())
    libraries = [build.compiled_before(one) for one in (build.CPU_RECORDER, build.COLLECTOR_WATCH)]
    left = "__cudamem__/.known.jsonl.12345678.cudamem.tmp, a/__cudamem__/.test_a.json.12345678.cudamem.tmp"
    assert str(first).splitlines() == [
        f"fixed: the CPU recorder was compiled: {libraries[0]}",
        f"fixed: the watch over the garbage collector was compiled: {libraries[1]}",
        f"fixed: removed 2 files of a killed process: {left}",
    ]
    assert sorted(str(one.relative_to(project)) for one in project.rglob("*") if one.is_file()) == [
        ".venv/.x.12345678.cudamem.tmp",
        "__cudamem__/.known.jsonl.87654321.cudamem.tmp",  # may still be written
        "__cudamem__/known.jsonl",
        "notes.cudamem.tmp",
    ]


def test_a_library_that_does_harm_is_compiled_again(project: Path) -> None:
    path = build.compiled()
    folder = path.parent / f"{path.stem}-abc.tmp"
    folder.mkdir()
    (folder / "part.o").touch()
    os.utime(folder, (0, 0))
    content = path.stat().st_ino
    repaired = repair(project / "a")
    assert repaired.done[0] == f"the CPU recorder was compiled again: {path}"
    assert repaired.done[2] == f"removed 1 file of a killed compiler: {folder}"
    assert path.stat().st_ino != content
    assert cache.is_whole(path)


def test_what_only_some_runs_use_is_compiled_again_where_it_was(project: Path) -> None:
    for library in (OPTIONAL[1], OPTIONAL[-1]):
        build.compiled(None, library)
    assert [line.partition(": ")[0] for line in repair(project / "nothing").done] == [
        "the CPU recorder was compiled",
        "the watch over the garbage collector was compiled",
        f"{OPTIONAL[1].title} was compiled again",
        f"{OPTIONAL[-1].title} was compiled again",
    ]


def test_every_native_part_is_known() -> None:
    modules = [importlib.import_module(one.name) for one in pkgutil.walk_packages(cudamem_testing.__path__, PREFIX)]
    found = {one for module in modules for one in vars(module).values() if type(one) is build.Library}
    assert found == {*ALWAYS, *OPTIONAL}


def test_what_cannot_be_fixed_fails(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(environ: object) -> list[str]:
        raise RecorderUnavailable("no C++ compiler found: install one")

    def refuse(path: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(build, "find_compiler", missing)
    monkeypatch.setattr(os, "unlink", refuse)
    monkeypatch.setattr(commands, "examine", lambda: Table((Column("what"), Column("state")), (("torch", "2"),)))
    assert main(["doctor", "--fix"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "not fixed: the CPU recorder: no C++ compiler found: install one",
        "not fixed: the watch over the garbage collector: no C++ compiler found: install one",
        "not fixed: __cudamem__/.known.jsonl.12345678.cudamem.tmp: Permission denied",
        "not fixed: a/__cudamem__/.test_a.json.12345678.cudamem.tmp: Permission denied",
        "torch  2",
    ]


def test_without_torch_and_leftovers(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_api, "version", lambda: None)
    assert repair(project / "a" / "none") == Repaired(())
    assert str(Repaired(())) == "nothing to fix"
