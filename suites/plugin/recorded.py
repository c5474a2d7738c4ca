"""What tests of recorded baselines share: the environment here, a module with two tests, and its file."""

from __future__ import annotations

import json
import platform

import torch

VERSION = ".".join(torch.__version__.split(".")[:2])
HERE = f"{platform.machine()}, 1 thread, torch {VERSION}"
FILE = "__cudamem__/test_it.json"
UPDATE = "--cudamem-update=baselines"
SMALL = """
    import pytest, torch

    @pytest.mark.memory_baseline
    def test_a(): torch.empty(256 * 1024)

    @pytest.mark.memory_baseline
    def test_b(): torch.empty(256 * 1024)
"""


def rows(pytester, file=FILE):
    """The lines of a file as they stand there: environments, and entries by test."""
    data = json.loads((pytester.path / file).read_text(encoding="utf-8"))
    found = data["entries"][:-1]
    return [row for row in found if "test" not in row], {row["test"]: row for row in found if "test" in row}


def entries(pytester, file=FILE):
    """The exact numbers of a file by test, all of this environment, and the places with their bytes."""
    (environment,), found = rows(pytester, file)
    assert (environment["environment"], environment["device"]) == (HERE, "cpu")
    assert {row["in"] for row in found.values()} == {environment["in"]}
    return {
        name: {
            **row.get("bytes", {}),
            **row.get("counts", {}),
            "top": [[place, size] for place, _, size, *_ in row["top"]],
        }
        for name, row in found.items()
    }


def run(run_inner, monkeypatch, more, *arguments, files=None):
    """A run in which each test takes so many KiB more."""
    monkeypatch.setenv("MORE", str(more))
    return run_inner({} if files is None else files, "--no-header", "-rA", *arguments)
