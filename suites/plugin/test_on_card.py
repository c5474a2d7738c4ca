"""What only a run on a real card shows: pytest in a process of its own, on CUDA alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cudamem_testing.model.findings import Kind, Severity, Verdict
from cudamem_testing.report.report_files import read_json
from cudamem_testing.wording.findings import text
from suites.plugin.inner import CACHE, Inner, write

pytestmark = [pytest.mark.gpu, pytest.mark.subprocess]


@pytest.fixture
def run_on_card(pytester):
    """Run pytest over some files with ``--cudamem --cudamem-device=cuda``, and variables of the environment."""

    def run(files, *args, **variables):
        write(pytester, files)
        report = pytester.path / "report.json"
        command = [sys.executable, "-m", "pytest", "-p", "cudamem", "--cudamem", "--cudamem-device=cuda"]
        paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        fixed = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "120", "PYTHONPATH": paths, "CUDAMEM_CACHE": CACHE}
        done = subprocess.run(
            [*command, f"--cudamem-json={report}", *args],
            cwd=pytester.path,
            env={**os.environ, **fixed, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        record = read_json(report) if report.exists() else None
        return Inner(done.returncode, done.stdout, done.stderr, pytester.path, record)

    return run


WITHOUT_BLOCKS = """
    import torch

    KEPT = []

    def test_clean():
        x = torch.ones(256, 256, device="cuda")
        (x @ x).sum().item()

    def test_leaks():
        x = torch.ones(256, 256, device="cuda")
        KEPT.append(x @ x)

    def test_after():
        torch.zeros(2**20, device="cuda")

    def test_cycle():
        class Node: pass
        node = Node()
        node.tensor, node.me = torch.ones(2**20, device="cuda"), node
"""


def test_leaks_without_recorded_blocks(run_on_card):
    setting = "backend:cudaMallocAsync"
    inner = run_on_card(WITHOUT_BLOCKS, PYTORCH_ALLOC_CONF=setting, PYTORCH_CUDA_ALLOC_CONF=setting)
    print(inner.out, inner.err)
    outcomes = {"test_clean": "passed", "test_leaks": "error", "test_after": "passed", "test_cycle": "error"}
    assert inner.outcomes == outcomes
    found = {name: [one for one in inner.test(name).findings if one.severity is Severity.FAIL] for name in outcomes}
    (leak,) = found["test_leaks"]
    assert (leak.verdict, leak.bytes, leak.holder) == (Verdict.REACHABLE, 2**18, "module test_it > KEPT (list)[0]")
    (cycle,) = found["test_cycle"]
    assert (cycle.kind, cycle.bytes) == (Kind.CYCLE, 2**22)
    assert (found["test_clean"], found["test_after"]) == ([], [])
    assert dict(inner.run.unchecked) == {}
    (header,) = [line for line in inner.lines if line.startswith("cudamem: device")]
    assert "backend:cudaMallocAsync (leaks are looked for among objects)" in header
    inner = run_on_card({})  # the control: torch's own allocator, which tells where they were allocated
    assert {name: inner.test(name).outcome for name in outcomes} == outcomes
    (leak,) = [one for one in inner.test("test_leaks").findings if one.severity is Severity.FAIL]
    assert leak.allocated is not None
    assert leak.allocated.startswith("test_it.py:11 in test_leaks")


COMPILED = """
    import torch

    KEPT = []

    def product(x, y):
        return (x @ y) @ y

    def run():
        x = torch.ones(512, 512, device="cuda")
        compiled = torch.compile(product, mode="reduce-overhead")
        for _ in range(3):
            out = compiled(x, x)
        return out

    def test_clean():
        run().sum().item()

    def test_again():
        run().sum().item()

    def test_keeps_the_result():
        KEPT.append(run().clone())

    def test_reset():
        torch.compiler.reset()
"""


def test_graphs_of_the_compiler_are_no_leak(run_on_card):
    inner = run_on_card(COMPILED)
    print(inner.out, *(text(one) for test in inner.run.tests for one in test.findings), sep="\n")
    assert inner.outcomes == {
        "test_clean": "passed",
        "test_again": "passed",
        "test_keeps_the_result": "error",
        "test_reset": "passed",
    }
    found = {test.nodeid.rpartition("::")[2]: {one.verdict.value for one in test.findings} for test in inner.run.tests}
    assert "compiler cache" in found["test_clean"]
    assert found["test_clean"] <= {"compiler cache", "library workspace"}
    assert "reachable" in found["test_keeps_the_result"]


REDUCER = """
    import tempfile, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def start():
        file = tempfile.mktemp()
        dist.init_process_group("nccl", rank=0, world_size=1, init_method="file://" + file)

    def test_first():
        start()
        model = DistributedDataParallel(torch.nn.Linear(512, 512).cuda())
        model(torch.ones(4, 512, device="cuda")).sum().backward()
        torch.cuda.synchronize()
        dist.destroy_process_group()

    def test_second():
        test_first()
"""


def test_what_a_reducer_leaves_is_named(run_on_card):
    inner = run_on_card(REDUCER)
    print(inner.out, *(text(one) for test in inner.run.tests for one in test.findings), sep="\n")
    held = [one for test in inner.run.tests for one in test.findings if one.verdict.value == "held by C++"]
    assert {one.holder for one in held} == {"the reducer of a DistributedDataParallel, in C++"}


PRODUCTS = """
    import pytest, torch

    @pytest.mark.parametrize("n", range(100))
    def test_product(n):
        x = torch.ones(64, 64, device="cuda")
        torch.nn.functional.linear(x, x, x[0])
        x @ x
"""


def test_a_workspace_is_asked_for_once(run_on_card):
    """Libraries take it again at once: later tests retain nothing, and nothing is searched."""
    inner = run_on_card(PRODUCTS)
    found = [test.nodeid for test in inner.run.tests if test.findings]
    print(inner.lines[-1], found, *(text(one) for test in inner.run.tests for one in test.findings), sep="\n")
    assert inner.last == "100 passed"
    assert len(found) <= 2


LOST = """
    import pytest, torch
    import torch.nn.functional as F

    W = torch.ones(64, 1024, device="cuda", requires_grad=True)

    def embed(x):
        with torch.no_grad():
            h = F.gelu(x @ W)
            return h + 1

    def train(x):
        h = F.gelu(x @ W)
        return h + 1

    @pytest.mark.memory_baseline
    def test_embed(): assert embed(torch.ones(1024, 64, device="cuda")) is not None

    @pytest.mark.memory_baseline
    def test_train():
        train(torch.ones(1024, 64, device="cuda")).sum().backward()
        W.grad = None
"""
TOLD = r"^saved for backward: \+4\.0 MiB by test_it\.py:9 in embed "
HINT = "   hint: grad mode was off there when the baseline was recorded: is a torch.no_grad() missing?"


def test_a_lost_no_grad_has_a_hint(run_on_card):
    """Grad mode is known from the stacks of the history; the control is the other test."""
    assert run_on_card(LOST, "--cudamem-update=baselines").last == "2 passed"
    lost = LOST.replace("with torch.no_grad():", "if True:")
    inner = run_on_card({"test_it.py": lost})
    assert inner.last == "1 failed, 1 passed", inner.out
    told = inner.section("test_embed")
    assert re.match(TOLD, told[1]), inner.out
    assert HINT in told
