"""What only cards show of workers and ranks: NCCL, a card for each, a share of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudamem_testing.report.report_files import read_json
from cudamem_testing.wording.findings import text
from suites.plugin.inner import CACHE, Inner, write

pytestmark = pytest.mark.subprocess
MIB = 2**20


@pytest.fixture
def run_on_cards(pytester: pytest.Pytester):
    """Run pytest over some files on all cards, with pytest-xdist where it is asked for."""

    def run(files, *args: str, plugins: tuple[str, ...] = ()) -> Inner:
        write(pytester, files)
        report = pytester.path / "report.json"
        loaded = [part for name in ("cudamem", *plugins) for part in ("-p", name)]
        command = [sys.executable, "-m", "pytest", *loaded, "--cudamem", "--cudamem-device=cuda"]
        paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        fixed = {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "COLUMNS": "120",
            "PYTHONPATH": paths,
            "CUDAMEM_CACHE": CACHE,
            "NCCL_NVLS_ENABLE": "0",
        }
        done = subprocess.run(
            [*command, f"--cudamem-json={report}", *args],
            cwd=pytester.path,
            env={**os.environ, **fixed},
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )
        print(done.stdout, done.stderr)
        return Inner(done.returncode, done.stdout, done.stderr, pytester.path, read_json(report))

    return run


WORKERS = """
    import os
    import pytest, torch

    KEPT = []

    @pytest.mark.parametrize("number", range(4))
    def test_card(number):
        assert torch.cuda.device_count() == 1
        x = torch.zeros(2**20, device="cuda")
        with open(os.environ["PYTEST_XDIST_WORKER"] + ".txt", "w") as out:
            out.write(os.environ["CUDA_VISIBLE_DEVICES"] + " " + str(torch.cuda.get_per_process_memory_fraction()))

    def test_leaks():
        KEPT.append(torch.zeros(2**20, device="cuda"))

    @pytest.mark.skipif("LIMITED" not in os.environ, reason="no limit")
    def test_more_than_its_share():
        total = torch.cuda.get_device_properties(0).total_memory
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(int(total * 0.6), dtype=torch.uint8, device="cuda")
"""


@pytest.mark.gpu(count=2)
def test_a_card_for_each_of_two_workers(run_on_cards):
    pytest.importorskip("xdist")
    inner = run_on_cards(WORKERS, "-n2", "--dist=load", "--cudamem-gpus=auto", plugins=("xdist.plugin",))
    assert inner.outcomes["test_leaks"] == "error"
    assert {inner.outcomes[f"test_card[{number}]"] for number in range(4)} == {"passed"}
    said = {path.stem: path.read_text().split() for path in inner.folder.glob("gw*.txt")}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    assert all(found == [visible[int(name[2:])].strip(), "1.0"] for name, found in said.items())


@pytest.mark.gpu
def test_two_workers_share_one_card(run_on_cards, monkeypatch):
    pytest.importorskip("xdist")
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", first)
    monkeypatch.setenv("LIMITED", "1")
    inner = run_on_cards(WORKERS, "-n2", "--dist=load", "--cudamem-gpus=fraction", plugins=("xdist.plugin",))
    assert inner.outcomes["test_more_than_its_share"] == "passed"
    assert inner.outcomes["test_leaks"] == "error"
    said = {path.read_text() for path in inner.folder.glob("gw*.txt")}
    assert said == {f"{first} 0.5"}
    assert [one for one in inner.run.findings if one.severity.value == "fail"] == []


RANKS = """
    import pytest, torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch.nn.parallel import DistributedDataParallel

    KEPT = []
    WIDTH = 512

    def join(rank, folder):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=2)

    def leaks_on_one(rank, folder):
        join(rank, folder)
        x = torch.ones(2**20, device="cuda")
        dist.all_reduce(x)
        torch.cuda.synchronize()
        if rank == 1:
            KEPT.append(x)
        dist.destroy_process_group()

    def step(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(8, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        torch.cuda.synchronize()

    def data_parallel(rank, folder):
        join(rank, folder)
        step(DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH).cuda(), device_ids=[rank]))
        dist.destroy_process_group()

    def fully_sharded(rank, folder):
        from torch.distributed.fsdp import fully_shard
        join(rank, folder)
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)).cuda()
        for layer in model:
            fully_shard(layer)
        step(fully_shard(model))
        dist.destroy_process_group()

    def test_leak(tmp_path):
        mp.spawn(leaks_on_one, (str(tmp_path),), nprocs=2)

    @pytest.mark.memory_baseline
    @pytest.mark.cudamem(leaks="off", cycles="off", reason="the baseline alone")
    @pytest.mark.parametrize("kind", [data_parallel, fully_sharded], ids=lambda kind: kind.__name__)
    def test_step(tmp_path, kind):
        mp.spawn(kind, (str(tmp_path),), nprocs=2)
"""
STEPS = ("test_step[data_parallel]", "test_step[fully_sharded]")


@pytest.mark.gpu(count=2)
def test_two_ranks_of_nccl(run_on_cards):
    """A leak on rank 1, and the baselines of a step of DDP and of FSDP2, recorded and compared."""
    inner = run_on_cards(RANKS, "--cudamem-update=baselines")
    for test in inner.run.tests:
        print(test, *test.notes, *map(text, test.findings), sep="\n")
    (found,) = inner.test("test_leak").failing
    assert (found.owner, str(found.device), found.bytes) == ("rank 1", "cuda:1", 4 * MIB)
    assert found.holder == "module test_it > KEPT (list)[0]"
    assert any("outside torch's allocator" in note for note in inner.test("test_leak").notes)
    for name in STEPS:
        test = inner.test(name)
        assert test.outcome == "passed"
        assert {str(one.device) for one in test.measured} == {"cuda:0", "cuda:1"}
        assert test.window("rank 1: call", "cuda:1").peak_growth > 0
    recorded = (inner.folder / "__cudamem__" / "test_it.json").read_text(encoding="utf-8")
    assert recorded.count('"test": "test_step') == 4

    wider = RANKS.replace("WIDTH = 512", "WIDTH = 1024")
    inner = run_on_cards(wider, "-k", "data_parallel", "--cudamem-baseline=require")
    test = inner.test(STEPS[0])
    assert test.outcome == "failed"
    assert {one.owner for one in test.failing} == {"rank 0", "rank 1"}
    assert {one.kind.value for one in test.failing} == {"baseline"}
