"""The example of the page: a step of a model of 70 billion parameters, asked by shapes alone."""

from __future__ import annotations

import subprocess

import pytest

from suites import forked


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_step_of_70_billion_parameters() -> None:
    command = [forked.python(compiler=True), "-m", "fixtures.simulated.seventy"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines() == [
        "h100: does not fit: CUDA out of memory. Tried to allocate 128.00 MiB",
        "400GiB: fits, with a peak of 263.2 GiB",
    ]
