"""The tour on a simulated card: what its tests say of a card holds there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from suites import forked

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.subprocess
def test_the_tour_passes_on_a_simulated_card() -> None:
    command = [forked.python(compiler=True), "-m", "pytest", "suites/tour", "-q", "-p", "suites.heap"]
    command += ["-p", "no:randomly", "-p", "no:cacheprovider", "--cudamem", "--cudamem-device=simulated"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " (simulated " in done.stdout
