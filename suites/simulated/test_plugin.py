"""Tests that say ``device="cuda"``, under ``--cudamem-device=simulated``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from suites import forked

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

def test_mempool():
    torch.cuda.MemPool()

def test_nccl():
    torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29872", rank=0, world_size=1)

def test_gloo(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        torch.distributed.all_reduce(torch.ones(2, device="cuda"))
    finally:
        torch.distributed.destroy_process_group()

def test_triton():
    class TritonMissing(RuntimeError): pass  # as torch's compiler raises it
    try:
        raise TritonMissing("Cannot find a working triton installation.")
    except TritonMissing as error:
        raise RuntimeError("backend='inductor' raised:") from error

def test_kernel():
    torch.cuda._compile_kernel('extern "C" __global__ void f() {}', "f")

def test_jiterator():
    code = "template <typename T> T twice(T x) { return 2 * x; }"
    torch.cuda.jiterator._create_jit_fn(code)(torch.ones(1, device="cuda"))

def test_sparse():
    torch.eye(3, device="cuda").to_sparse()

def test_graph_fixture(graph_capture):
    graph_capture(lambda x: x + 1, torch.ones(2, device="cuda")).replay()

def test_ordinary_error():
    raise RuntimeError("no card is to blame")

def test_accelerator_error():
    with pytest.raises(torch.AcceleratorError, match="CUDA error: invalid device ordinal"):
        torch.empty(1, device="cuda:5")

def training(width):
    layers = torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 8)
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0)
    inputs = torch.randn(4, width, device="cuda")
    def step():
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    return model, optimizer, step

def test_sweep(cuda_memory):
    model, optimizer, step = training(64)
    found = cuda_memory.fail_each_allocation(step, model=model)
    assert found.tried == found.allocations > 10
    optimizer.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(AssertionError, match="half changed: model.0.weight was written 1 of 2 times, and 3 more"):
        cuda_memory.fail_each_allocation(step, model=model)

@pytest.mark.cudamem(device="simulated", values=False)
def test_sweep_of_shapes(cuda_memory):
    model, optimizer, step = training(6400)
    found = cuda_memory.fail_each_allocation(step, model=model)
    assert found.notes[-1].startswith("the card has no values to compare: state counts as changed if it was written")

    def half():
        optimizer.zero_grad()
        model(torch.ones(4, 6400, device="cuda")).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad * 0.1)
    with pytest.raises(AssertionError, match=r"half changed: 2 of 4 \\(model.0.weight, model.0.bias\\), not"):
        cuda_memory.fail_each_allocation(half, model=model)

@pytest.mark.cudamem(device="simulated", values=False)
def test_growth_of_shapes(cuda_memory):
    def attend(n):
        q = torch.empty(n, 64, device="cuda")
        return (q @ q.T).softmax(-1) @ q
    scaling = cuda_memory.scaling(attend, [2**14, 2**15, 2**16])
    scaling.assert_peak("O(n^2)")
    with pytest.raises(AssertionError, match=r"peak grows like n\\^2.00, promised O\\(n\\)"):
        scaling.assert_peak("O(n)")

def test_values_again():
    assert torch.ones(2, device="cuda").sum().item() == 2
"""
#: What a real card of the same model recorded, with another torch.
#: What is skipped, and a part of the reason.
SKIPPED = {
    "test_graph": "captures no CUDA graphs",
    "test_graph_fixture": "captures no CUDA graphs",
    "test_mempool": "no memory pools of its own",
    "test_nccl": "has no NCCL",
    "test_gloo": "has no collectives",
    "test_triton": "runs no Triton kernels",
    "test_kernel": "CUDA kernels",
    "test_jiterator": "runs no CUDA or Triton kernels",
    "test_sparse": "has no sparse tensors",
}
SIZE = '"in": "real", "peak": "3.8 MiB", "bytes": {"requested": 4000000}'
REAL = f"""{{"kind": "baselines", "schema": 2, "entries": [
{{"in": "real", "device": "cuda:0", "environment": "NVIDIA H100 80GB HBM3 (9.0), torch 2.5, native"}},
{{"test": "test_far", {SIZE}, "top": []}},
{{"test": "test_near", {SIZE}, "counts": {{"allocations": 9}}, "top": []}},
null]}}
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_what_is_checked_on_a_card_is_checked(tmp_path: Path) -> None:
    file, report = tmp_path / "test_it.py", tmp_path / "report.json"
    file.write_text(TESTS)
    command = [forked.python(compiler=True), "-m", "pytest", "-p", "cudamem", "-p", "suites.heap", str(file)]
    beside = tmp_path / "__cudamem__" / "test_it.json"
    beside.parent.mkdir()
    beside.write_text(REAL)
    options = ["--cudamem", "--cudamem-device=simulated:h100", f"--cudamem-json={report}", "--rootdir", str(tmp_path)]
    options += ["--cudamem-baseline=simulated", "-rs", "-p", "no:cacheprovider"]
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
    assert "measured 26 tests on cuda:0 (simulated h100)" in text
    assert ("baseline", "fail") not in [one[:2] for one in found["test_near"]], text
    assert ("baseline", "fail", 160_000) in found["test_far"], text
    assert "recorded with NVIDIA H100 80GB HBM3 (9.0), torch 2.5, this run has simulated h100 (9.0)" in text
    assert "baseline on cuda:0: allocations of a real card not compared on a simulated one" in report.read_text()
    assert "tests: no baseline (record with --cudamem-update=baselines)" in text
    outcomes = {test["nodeid"].partition("::")[2]: test["outcome"] for test in document["tests"]}
    assert {name for name, outcome in outcomes.items() if outcome == "skipped"} == set(SKIPPED), text
    assert [reason for reason in SKIPPED.values() if reason not in text] == []
    assert (outcomes["test_ordinary_error"], outcomes["test_accelerator_error"]) == ("failed", "passed"), text
    assert outcomes["test_shapes_alone"] == "failed"
    assert ("budget", "fail", 2 * 2**30) in found["test_shapes_alone"], text
    assert "item() needs the values of a tensor on a simulated card without values" in text
    names = ("sweep", "sweep_of_shapes", "growth_of_shapes")
    assert [outcomes[f"test_{name}"] for name in names] == ["passed"] * 3, text
    assert (outcomes["test_value_of_a_shape"], outcomes["test_values_again"]) == ("failed", "passed"), text


def test_a_wrong_card_is_a_usage_error(tmp_path: Path) -> None:
    from cudamem_testing.model.options import device

    with pytest.raises(ValueError, match="no card 'h900' can be simulated"):
        device("simulated:h900")
