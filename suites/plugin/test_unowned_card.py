"""Memory of a card that code outside tests allocates: the warning names the test file in which it appeared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from suites.plugin.apart import run_apart

CONFTEST = """
    import torch

    kept = []

    def pytest_runtest_logfinish(nodeid):
        if nodeid.endswith(("test_before_a_block", "test_before_another")):
            kept.append(torch.ones(2**18, device="cuda"))
        if nodeid.endswith("test_with_the_block_again"):
            kept.clear()
"""
#: In `test_last` the same is read as in `test_with_the_block_again`; in the test between them something new.
FIRST = """
    import torch

    def run():
        torch.ones(10, device="cuda")

    test_first = test_second = test_before_a_block = test_with_the_block = test_with_the_block_again = run

    def test_before_another():
        torch.ones(3000, device="cuda")

    def test_last():
        run()
"""


@pytest.mark.subprocess
@pytest.mark.simulated_card
def test_the_file_in_which_a_block_appeared(tmp_path: Path) -> None:
    files = {"conftest.py": CONFTEST, "test_first.py": FIRST, "test_second.py": "def test_nothing():\n    pass\n"}
    arguments = ("-p", "cudamem_testing.plugin", "--cudamem", "--cudamem-device=simulated")
    said = " ".join(run_apart(sys.executable, tmp_path, files, *arguments).split())
    assert "1.0 MiB of test_first.py is still live, not visible in any test's counters (cuda:0)" in said
