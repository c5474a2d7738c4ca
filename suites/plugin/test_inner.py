"""Runs of pytest inside a test leave nothing behind but packages that cannot be imported twice."""

from __future__ import annotations

import sys

import pytest

from suites.plugin import inner


def test_what_cannot_be_imported_twice_stays(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner, "ONCE", {"once_example"})
    files = {
        "once_example/__init__.py": "",
        "once_example/part.py": "",
        "other_example.py": "",
        "test_it.py": "import once_example.part, other_example\ndef test_it(): pass",
    }
    assert inner.run_inner(pytester, files).status == 0
    kept = {"once_example", "once_example.part"}
    assert {*kept, "other_example", "test_it"} & {*sys.modules} == kept
    for name in kept:
        del sys.modules[name]
