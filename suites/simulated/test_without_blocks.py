"""An allocator that counts bytes and lists no blocks, as ``cudaMallocAsync``: leaks by its counter and a search."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudamem_testing.model.findings import Finding, Severity, Verdict
from cudamem_testing.model.records import RunRecord
from cudamem_testing.report.report_files import read_json
from cudamem_testing.wording.findings import title
from suites import forked
from suites.plugin.inner import CACHE

OTHER = """
from cudamem_testing import torch_api
torch_api.allocator_backend = lambda: "cudaMallocAsync"
"""
TESTS = """
import pytest, torch

KEPT = []

@pytest.fixture(scope="module")
def model():
    return torch.nn.Linear(256, 256, device="cuda")

def test_clean(model):
    model(torch.ones(4, 256, device="cuda")).sum().item()

def test_leaks(model):
    KEPT.append(torch.zeros(2**20, device="cuda"))

def test_after(model):
    torch.zeros(2**20, device="cuda")

def test_cycle():
    class Node: pass
    node = Node()
    node.tensor, node.me = torch.ones(2**20, device="cuda"), node

def test_workspaces():
    x = torch.ones(64, 64, device="cuda")
    KEPT.append(x @ x)

def test_graph():
    x = torch.ones(2**18, device="cuda", requires_grad=True)
    KEPT.append(x.exp().sum().grad_fn)

def test_gradient():
    x = torch.ones(2**18, device="cuda", requires_grad=True)
    x.sum().backward()
    KEPT.append(x)

@pytest.mark.cudamem(leaks="off", reason="only the next test is judged")
def test_off():
    KEPT.append(torch.zeros(2**20, device="cuda"))

def test_smaller():
    KEPT.append(torch.zeros(2**10, device="cuda"))

def test_no_tensor():
    KEPT.append(torch.cuda.caching_allocator_alloc(2**20))
"""


def found(record: RunRecord, name: str) -> list[Finding]:
    return [one for one in record.test(name).findings if one.severity is not Severity.NOTE]


@pytest.mark.slow
@pytest.mark.subprocess
def test_leaks_are_found_by_the_counter_and_among_objects(tmp_path: Path) -> None:
    (tmp_path / "other_allocator.py").write_text(OTHER)
    (tmp_path / "test_it.py").write_text(TESTS)
    loaded = ["-p", "cudamem", "-p", "suites.heap", "-p", "other_allocator", "-p", "no:cacheprovider"]
    flags = ["--cudamem", "--cudamem-device=simulated", "--cudamem-json=report.json"]
    paths = os.pathsep.join(filter(None, (str(tmp_path), *sys.path)))
    done = subprocess.run(
        [forked.python(), "-m", "pytest", *loaded, *flags],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CUDAMEM_CACHE": CACHE},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    report = tmp_path / "report.json"
    assert report.exists(), done.stdout + done.stderr
    record = read_json(report)
    outcomes = {test.nodeid.rpartition("::")[2]: test.outcome for test in record.tests}
    clean = ("test_clean", "test_after", "test_off", "test_no_tensor")
    assert outcomes == {name: "passed" if name in clean else "error" for name in outcomes}, done.stdout
    leaked = {name: [(one.bytes, one.holder) for one in found(record, name)] for name in outcomes}
    kept = "module test_it > KEPT (list)"
    assert leaked["test_leaks"] == [(4 * 2**20, f"{kept}[0]")]
    assert leaked["test_workspaces"] == [(64 * 64 * 4, f"{kept}[1]")]
    assert [size for size, _ in leaked["test_graph"]] == [2 * 2**20]
    assert [size for size, _ in leaked["test_gradient"]] == [2 * 2**20]
    assert leaked["test_smaller"] == [(4096, f"{kept}[5]")]
    (cycle,) = found(record, "test_cycle")
    assert title(cycle).startswith("cudamem: 4.0 MiB kept by a reference cycle (1 tensor, cuda:0)")
    for name in ("test_clean", "test_after"):
        assert record.test(name).findings == ()
    (rest,) = record.test("test_no_tensor").findings
    assert (rest.verdict, rest.bytes, rest.holder) == (Verdict.UNATTRIBUTED, 2**20, None)
    assert dict(record.unchecked) == {}
