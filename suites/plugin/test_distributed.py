"""DistributedDataParallel, FSDP2 and tensor parallel on the CPU: clean programs are clean, kept ones are named."""

from __future__ import annotations

import pytest

from cudamem_testing.model.facts import REDUCER
from cudamem_testing.model.findings import Severity, Verdict

FILE = """
    import pytest, torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel

    KEPT, N = [], 256

    @pytest.fixture
    def group():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
        if dist.is_initialized():
            dist.destroy_process_group()

    def stepped(model):
        model(torch.ones(4, N)).sum().backward()
        return model

    def data_parallel():
        return stepped(DistributedDataParallel(torch.nn.Linear(N, N)))

    def fully_sharded():
        from torch.distributed.fsdp import fully_shard
        model, mesh = torch.nn.Sequential(torch.nn.Linear(N, N), torch.nn.Linear(N, N)), init_device_mesh("cpu", (1,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        return stepped(fully_shard(model, mesh=mesh))

    def tensor_parallel():
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        model = torch.nn.Sequential(torch.nn.Linear(N, N), torch.nn.Linear(N, N))
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        return stepped(parallelize_module(model, init_device_mesh("cpu", (1,)), plan))

    MODELS = data_parallel, fully_sharded, tensor_parallel
    KINDS = pytest.mark.parametrize("make", MODELS, ids=lambda one: one.__name__)

    @KINDS
    def test_first(group, make):  # makes what torch makes once
        make()

    @KINDS
    def test_clean(group, make):
        make()

    def test_group_ends_before_the_model(group):
        model = data_parallel()
        dist.destroy_process_group()

    @KINDS
    def test_kept(group, make):
        KEPT.append(make())
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_models_of_distributed_training(run_outer):
    """What holds a kept model is named; the buckets of a reducer are distinguished from what hooks may hold."""
    inner = run_outer(FILE, "--cudamem", "--cudamem-device=cpu", "-W", "ignore")
    kinds = ("data_parallel", "fully_sharded", "tensor_parallel")
    clean = [
        "test_group_ends_before_the_model",
        *(f"test_{name}[{kind}]" for name in ("first", "clean") for kind in kinds),
    ]
    assert {inner.outcomes[name] for name in clean} == {"passed"}
    assert [one for name in clean for one in inner.test(name).findings if one.severity is Severity.FAIL] == []
    for place, kind in enumerate(kinds):
        found = inner.test(f"test_kept[{kind}]").failing
        assert found[0].verdict is Verdict.REACHABLE
        assert all(
            f"module test_it > KEPT (list)[{place}]" in (one.holder or "") for one in found if one.holder != REDUCER
        )
    reducers = [one for one in inner.test("test_kept[data_parallel]").failing if one.holder == REDUCER]
    assert [(one.verdict, one.bytes) for one in reducers] == [(Verdict.HELD_BY_CPP, 257 * 1024)]
