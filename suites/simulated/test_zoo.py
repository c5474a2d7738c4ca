"""The zoo of leaks and cycles on the simulated card: the verdicts of a real one."""

from __future__ import annotations

import os
import subprocess

import pytest

from suites import forked

MODULES = ("leaks", "leaks_functions", "leaks_modules", "cycles", "recovery")


@pytest.mark.slow
@pytest.mark.subprocess
def test_verdicts_are_those_of_a_card() -> None:
    command = [forked.python(compiler=True), "-m", "suites.zoo", "--together", *MODULES]
    environment = {**os.environ, "CUDAMEM_ZOO_DEVICE": "simulated"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    right, all_of_them = done.stdout.splitlines()[-1].split(" cases right on cuda, ")[0].split(" of ")
    assert right == all_of_them
    assert int(right) >= 40
