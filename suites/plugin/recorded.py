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


def entries(pytester, file=FILE):
    """The entries of a file by test, without the environment."""
    data = json.loads((pytester.path / file).read_text(encoding="utf-8"))
    found = {entry.pop("test"): entry for entry in data["entries"][:-1]}
    for entry in found.values():
        assert (entry.pop("environment"), entry.pop("device")) == (HERE, "cpu")
    return found


def run(run_inner, monkeypatch, more, *arguments, files=None):
    """A run in which each test takes so many KiB more."""
    monkeypatch.setenv("MORE", str(more))
    return run_inner({} if files is None else files, "--no-header", "-rA", *arguments)
