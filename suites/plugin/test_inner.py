"""Runs of pytest inside a test leave nothing behind but what they have imported of other projects."""

from __future__ import annotations

import sys

import pytest

from suites.plugin.inner import run_inner


def test_what_an_inner_run_imports_stays_unless_it_is_its_own(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "installed_example.py").write_text("VALUE = [1]")
    monkeypatch.syspath_prepend(other)
    files = {"own_example.py": "", "test_it.py": "import installed_example, own_example\ndef test_it(): pass"}
    assert run_inner(pytester, files).status == 0
    assert {"installed_example", "own_example", "test_it"} & {*sys.modules} == {"installed_example"}
    del sys.modules["installed_example"]
