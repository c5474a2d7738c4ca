"""Tests that say ``device="cuda"``, under ``--cudamem-device=simulated``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest, torch

CACHE = {}
there = torch.cuda.is_available()

def test_values():
    assert there and (torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda"))[0, 0].item() == 4

def test_leak():
    CACHE["kept"] = torch.ones(3 << 20, device="cuda")

@pytest.mark.memory_budget(peak={"cuda": "16MiB"})
def test_budget():
    x = torch.ones(4 << 20, device="cuda")
    y = x * 2

def test_cycle():
    class Node: pass
    node = Node()
    node.tensor, node.me = torch.ones(1 << 20, device="cuda"), node

def test_full():
    torch.empty(100 << 30, device="cuda")

def test_limit(cuda_memory):
    with pytest.raises(torch.OutOfMemoryError), cuda_memory.limit("8MiB"):
        torch.empty(16 << 20, device="cuda")

def test_graph():
    torch.cuda.CUDAGraph()

@pytest.mark.memory_baseline
def test_baseline():
    torch.ones(1000, device="cuda")
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_what_is_checked_on_a_card_is_checked(tmp_path: Path) -> None:
    file, report = tmp_path / "test_it.py", tmp_path / "report.json"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "cudamem", "-p", "no:cacheprovider", str(file)]
    options = ["--cudamem", "--cudamem-device=simulated:24GiB", f"--cudamem-json={report}", "--rootdir", str(tmp_path)]
    environment = {**os.environ, "PYTEST_ADDOPTS": "-p no:randomly"}
    command += options
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
    text = done.stdout
    document = json.loads(report.read_text())
    assert document["environment"]["devices"] == ["cuda:0 (simulated 24GiB)"], text
    found = {
        test["nodeid"].partition("::")[2]: [(one["kind"], one["severity"], one["bytes"]) for one in test["findings"]]
        for test in document["tests"]
    }
    assert found["test_values"] == [("leak", "note", 32 << 20)], text  # the workspace of cuBLAS
    assert ("leak", "fail", 12 << 20) in found["test_leak"], text
    assert ("budget", "fail") in [one[:2] for one in found["test_budget"]], text
    assert ("cycle", "fail", 4 << 20) in found["test_cycle"], text
    assert "oom" in [one[0] for one in found["test_full"]], text
    assert [one for one in found["test_limit"] if one[1] == "fail"] == [], text
    assert "held by    module test_it > CACHE (dict)['kept']" in text
    assert [test["outcome"] for test in document["tests"] if "test_graph" in test["nodeid"]] == ["skipped"], text
    assert "measured 8 tests on cuda:0 (simulated 24GiB)" in text


def test_a_wrong_card_is_a_usage_error(tmp_path: Path) -> None:
    from cudamem_testing.model.options import device

    with pytest.raises(ValueError, match="no card 'h900' can be simulated"):
        device("simulated:h900")
