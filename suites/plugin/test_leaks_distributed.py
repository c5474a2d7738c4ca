"""Memory of wrappers for training on many cards, which they keep in C++: on the CPU, with one process."""

from __future__ import annotations

import pytest

from cudamem_testing.wording.findings import text

SHARDED = """
    import pytest, torch, torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    KEPT = []

    @pytest.fixture(autouse=True)
    def group(tmp_path):
        dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
        yield
        dist.destroy_process_group()

    def trained():
        inner = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
        model = FSDP(inner, device_id=torch.device("cpu"))
        model(torch.ones(4, 256)).sum().backward()
        return model

    def test_left():
        trained()

    def test_taken_apart():
        model = trained()
        for part in FSDP.fsdp_modules(model): vars(part._handle.flat_param).clear()

    def test_kept():
        KEPT.append(trained())
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_the_hint_frees_what_a_flat_parameter_keeps(run_outer):
    inner = run_outer(SHARDED, "--cudamem", "--cudamem-cycles=off", "-W", "ignore")
    found = {test.nodeid.rpartition("::")[2]: test.findings for test in inner.run.tests}
    (left,) = found["test_left"]
    assert left.holder == "the flat parameter of a FullyShardedDataParallel and its views, in C++"
    assert left.bytes == 2 * 131584 * 4
    assert "   hint: use fully_shard, or end the test with: for part in FSDP.fsdp_modules(model): " in text(left)
    assert "clone() would release it" not in text(left)
    assert found["test_taken_apart"] == ()
    assert {one.verdict.value for one in found["test_kept"]} == {"reachable"}
