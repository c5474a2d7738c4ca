"""The native parts that the installation compiles."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cudamem_testing
from cudamem_testing.recorders.build import CPU_RECORDER, RecorderUnavailable
from suites import compiled

PACKAGE = Path(cudamem_testing.__file__).parent


def test_it_knows_every_native_part() -> None:
    calls = [
        node
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Library"
    ]
    names = {node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)}
    assert {part.name for part in compiled.PARTS} == names
    assert len(calls) == len(compiled.PARTS)


def test_what_cannot_be_compiled_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(library: object) -> None:
        raise RecorderUnavailable("no C++ compiler")

    monkeypatch.setattr(compiled, "compiled", refuse)
    compiled.main([CPU_RECORDER])
    assert capsys.readouterr().out == "the CPU recorder was not compiled: no C++ compiler\n"
