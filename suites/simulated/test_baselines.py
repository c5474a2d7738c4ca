"""Baselines on a simulated card name the lines that those of a card do."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from suites import forked
from suites.plugin.inner import CACHE, write
from suites.plugin.test_on_card import HINT, LOST, TOLD


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_lost_no_grad_has_a_hint(pytester: pytest.Pytester) -> None:
    command = [
        forked.python(),
        "-m",
        "pytest",
        "-p",
        "cudamem",
        "-p",
        "suites.heap",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
    ]
    options = ["--cudamem", "--cudamem-device=simulated:24GiB", "--rootdir", str(pytester.path)]
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))

    def run(text: str, *more: str) -> str:
        write(pytester, text)
        return subprocess.run(
            [*command, *options, *more],
            cwd=pytester.path,
            env={**os.environ, "PYTHONPATH": paths, "CUDAMEM_CACHE": CACHE},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        ).stdout

    recorded = run(LOST, "--cudamem-update=baselines")
    assert "2 passed" in recorded, recorded
    lost = run(LOST.replace("with torch.no_grad():", "if True:"))
    assert "1 failed, 1 passed" in lost, lost
    assert re.search(TOLD, lost, re.M), lost
    assert HINT in lost.splitlines()
