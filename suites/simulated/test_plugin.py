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

@pytest.mark.memory_baseline(metrics=("requested", "allocations"))
def test_near():
    torch.ones(1_020_000, device="cuda")

@pytest.mark.memory_baseline
def test_far():
    torch.ones(1_040_000, device="cuda")

@pytest.mark.cudamem(device="simulated", values=False)
@pytest.mark.memory_budget(peak={"cuda": "20GiB"})
def test_shapes_alone():
    x = torch.empty(8 << 30, device="cuda", dtype=torch.bfloat16)
    y = torch.empty(3 << 30, device="cuda", dtype=torch.bfloat16)
    y.add_(1)

@pytest.mark.cudamem(device="simulated", values=False)
def test_value_of_a_shape():
    torch.ones(2, device="cuda").sum().item()

def test_values_again():
    assert torch.ones(2, device="cuda").sum().item() == 2
"""
#: What a real card of the same model recorded, with another torch.
SIZE = '"in": "real", "peak": "3.8 MiB", "bytes": {"requested": 4000000}'
REAL = f"""{{"kind": "baselines", "schema": 2, "entries": [
{{"in": "real", "device": "cuda:0", "environment": "NVIDIA H100 80GB HBM3 (9.0), torch 2.11, native"}},
{{"test": "test_far", {SIZE}, "top": []}},
{{"test": "test_near", {SIZE}, "counts": {{"allocations": 9}}, "top": []}},
null]}}
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_what_is_checked_on_a_card_is_checked(tmp_path: Path) -> None:
    file, report = tmp_path / "test_it.py", tmp_path / "report.json"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "cudamem", "-p", "no:cacheprovider", str(file)]
    beside = tmp_path / "__cudamem__" / "test_it.json"
    beside.parent.mkdir()
    beside.write_text(REAL)
    options = ["--cudamem", "--cudamem-device=simulated:h100", f"--cudamem-json={report}", "--rootdir", str(tmp_path)]
    options.append("--cudamem-baseline=simulated")
    environment = {**os.environ, "PYTEST_ADDOPTS": "-p no:randomly"}
    command += options
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=600)
    text = done.stdout
    document = json.loads(report.read_text())
    assert document["environment"]["devices"] == ["cuda:0 (simulated h100)"], text
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
    assert "measured 13 tests on cuda:0 (simulated h100)" in text
    assert ("baseline", "fail") not in [one[:2] for one in found["test_near"]], text
    assert ("baseline", "fail", 160_000) in found["test_far"], text
    assert "recorded with NVIDIA H100 80GB HBM3 (9.0), torch 2.11, this run has simulated h100 (9.0)" in text
    assert "baseline on cuda:0: allocations of a real card not compared on a simulated one" in report.read_text()
    assert "NOT CHECKED: 7 tests: no baseline" in text
    outcomes = {test["nodeid"].partition("::")[2]: test["outcome"] for test in document["tests"]}
    assert outcomes["test_shapes_alone"] == "failed"
    assert ("budget", "fail", 2 * 2**30) in found["test_shapes_alone"], text
    assert "item() needs the values of a tensor on a simulated card without values" in text
    assert (outcomes["test_value_of_a_shape"], outcomes["test_values_again"]) == ("failed", "passed"), text


def test_a_wrong_card_is_a_usage_error(tmp_path: Path) -> None:
    from cudamem_testing.model.options import device

    with pytest.raises(ValueError, match="no card 'h900' can be simulated"):
        device("simulated:h900")
