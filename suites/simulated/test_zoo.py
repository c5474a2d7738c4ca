"""The zoo of leaks and cycles on the simulated card: the verdicts of a real one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("module", ["leaks", "leaks_functions", "leaks_modules", "cycles", "recovery"])
def test_verdicts_are_those_of_a_card(module: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--cudamem-device=simulated"]
    command.append(f"suites/run/test_zoo.py::test_verdicts[{module}]")
    environment = {**os.environ, "CUDAMEM_ZOO_DEVICE": "simulated"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "1 passed" in done.stdout
