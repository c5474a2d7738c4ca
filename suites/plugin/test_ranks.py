"""Processes that a test starts: their windows and findings are in the test's record, named by rank."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import spawn
from types import SimpleNamespace
from typing import cast

import pytest

from cudamem_testing.model.findings import Kind, Verdict
from cudamem_testing.ranks.processes import UNMEASURED
from cudamem_testing.ranks.watch import Ranks
from cudamem_testing.run.session import Session
from cudamem_testing.wording.findings import title
from suites import forked

SAME_PROCESS = """
    import multiprocessing, os, subprocess
    import pytest, torch

    pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12
    KEPT = []

    class Process:
        _start_method = "spawn"

        def __init__(self, target, args=(), code=0):
            self._target, self._args, self._code, self.name = target, args, code, "SpawnProcess-1"
            self.exitcode = None

        def start(self):
            from cudamem_testing.ranks.watch import Ranks
            HOOKS.ranks.begin(self)
            if self._code == 0:
                self._target(*self._args)
            self.exitcode = self._code

        def join(self, timeout=None): pass

    @pytest.fixture(autouse=True)
    def hooks(request):
        global HOOKS
        HOOKS = request.config.pluginmanager.getplugin("cudamem-session")

    def work(size):
        torch.empty(size)

    def leak():
        KEPT.append(torch.empty(2**18))

    def test_returned():
        Process(torch.empty, (2**18,)).start()

    class Runs(multiprocessing.process.BaseProcess):
        _start_method = "spawn"

        def run(self):
            leak()

    def test_class_with_its_own_run():
        process = Runs(name="own")
        HOOKS.ranks.begin(process)
        process.run()

    def test_windows():
        Process(work, (256,)).start()

    @pytest.mark.memory_budget(peak="1KiB")
    def test_budget():
        Process(work, (512,)).start()

    def test_leak():
        Process(leak).start()

    def test_died():
        Process(work, (256,), code=-9).start()

    def test_still_runs():
        process = Process(work, (256,))
        process._code = None
        process.start()

    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    def fork_as(name):
        process = multiprocessing.get_context("fork").Process(target=int, name=name)
        process.start()
        process.join()

    def test_forked():
        fork_as("child")

    def test_bare_fork():
        fork()

    def test_many_forks():
        for name in "abcd":
            fork_as(name)
        fork(), fork()

    def test_another_program():
        subprocess.run(["true"], preexec_fn=int, check=True)

    @pytest.fixture
    def forking():
        yield
        fork()

    def test_fork_in_a_teardown(forking): pass

    def test_own_api(cuda_memory):
        import cudamem_testing
        with cuda_memory.ranks(), cudamem_testing.rank("side") as memory:
            with memory.window("part"):
                torch.empty(256)

    def test_without_a_test():
        import cudamem_testing
        with cudamem_testing.rank() as memory, memory.window("part") as part:
            torch.empty(256)
        assert part.peak_growth == 1024
"""


def test_what_ranks_took_is_in_the_record_of_their_test(run_inner):
    """Each is measured in this process here, which costs no start of another."""
    inner = run_inner(SAME_PROCESS, "--cudamem")
    assert inner.outcomes == {
        "test_class_with_its_own_run": "failed",
        "test_windows": "passed",
        "test_returned": "passed",
        "test_budget": "failed",
        "test_leak": "failed",
        "test_died": "passed",
        "test_still_runs": "passed",
        "test_forked": "passed",
        "test_bare_fork": "passed",
        "test_many_forks": "passed",
        "test_another_program": "passed",
        "test_fork_in_a_teardown": "passed",
        "test_own_api": "passed",
        "test_without_a_test": "passed",
    }
    window = inner.window("test_windows", "SpawnProcess-1: call")
    assert (window.peak_growth, window.allocations, window.complete) == (1024, 1, True)
    assert inner.last == "3 failed, 11 passed"
    own, found = inner.test("test_budget").failing  # the process is this one here, so the test itself took it as well
    assert own.owner is None
    assert title(found).startswith("cudamem: SpawnProcess-1: peak 2.0 KiB above start is over its budget of 1.0 KiB")
    (found,) = [one for one in inner.test("test_leak").failing if one.owner]
    assert (found.kind, found.verdict, found.owner) == (Kind.LEAK, Verdict.REACHABLE, "SpawnProcess-1")
    assert "own" in [one.owner for one in inner.test("test_class_with_its_own_run").failing]
    died = inner.window("test_died", "SpawnProcess-1: call")
    assert (died.complete, died.notes) == (False, ("the process died with exit code -9: what it took is not known",))
    assert inner.test("test_died").notes == ("SpawnProcess-1 died with exit code -9: what it took is not known",)
    assert inner.test("test_still_runs").notes == ("SpawnProcess-1 still runs: what it took is not known",)
    assert inner.test("test_forked").notes == ("child was forked and is not measured: start it with spawn",)
    bare = ("1 process of os.fork() is not measured: start it with spawn",)
    assert inner.test("test_bare_fork").notes == inner.test("test_fork_in_a_teardown").notes == bare
    assert inner.test("test_many_forks").notes == (
        "a, b, c and 1 more were forked and are not measured: start them with spawn",
        "2 processes of os.fork() are not measured: start them with spawn",
    )
    assert inner.test("test_another_program").notes == ()
    assert inner.window("test_own_api", "side: part").peak_growth == 1024


def test_the_processes_of_a_simulated_card_are_not_measured():
    running = SimpleNamespace(notes=[])
    ranks = Ranks(cast("Session", SimpleNamespace(running=running, settings=SimpleNamespace(simulated="h100"))))
    ranks.begin(multiprocessing.get_context("spawn").Process(target=int, name="child"))
    assert running.notes == ["child is not measured: the simulated card is in the test's process alone"]


SPAWNED = """
    import os

    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    KEPT = []

    def leaks_on_one(rank, folder):
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        x = torch.ones(2**18)
        dist.all_reduce(x)
        if rank == 1:
            KEPT.append(x)
        else:  # a rank may start processes as well, and one may end without a word
            helper = mp.get_context("spawn").Process(target=os._exit, args=(0,), name="helper")
            helper.start()
            helper.join()
        dist.destroy_process_group()

    def test_leak(tmp_path):
        mp.spawn(leaks_on_one, (str(tmp_path),), nprocs=2)
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_spawned_ranks(run_inner, request):
    before = spawn.get_executable()
    spawn.set_executable(forked.python())
    request.addfinalizer(lambda: spawn.set_executable(before))
    inner = run_inner(SPAWNED, "--cudamem", "--cudamem-device=cpu")
    assert inner.outcomes == {"test_leak": "failed"}
    assert inner.window("test_leak", "rank 0: call").peak_growth == 2**20
    (found,) = inner.test("test_leak").failing
    assert (found.owner, found.verdict, found.bytes) == ("rank 1", Verdict.REACHABLE, 2**20)
    assert found.holder == "module test_it > KEPT (list)[0]"
    assert found.allocated is not None
    assert found.allocated.startswith("test_it.py:11 in leaks_on_one")
    said = "rank 0: helper ended and wrote nothing: what it took is not known"
    assert inner.test("test_leak").notes == (said,)


LAUNCHED = {
    "script.py": """
        import torch, cudamem_testing
        with cudamem_testing.rank() as memory:
            with memory.window("step"):
                torch.ones(2**18)
    """,
    "test_it.py": """
        import subprocess, sys
        import torch

        def test_torchrun(cuda_memory):
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
            with cuda_memory.ranks():
                subprocess.run(command, check=True)
    """,
}


@pytest.mark.slow
@pytest.mark.subprocess
def test_torchrun(run_inner, monkeypatch):
    monkeypatch.setattr(sys, "executable", forked.python())
    inner = run_inner(LAUNCHED, "--cudamem", "--cudamem-device=cpu")
    assert inner.last == "1 passed"
    names = [one.name for one in inner.test("test_torchrun").windows]
    assert {"rank 0: step", "rank 1: step", "rank 0: call", "rank 1: call"} <= {*names}
    assert inner.window("test_torchrun", "rank 1: step").peak_growth == 2**20


FORKED = """
    import multiprocessing, os
    import torch
    from torch.utils.data import DataLoader, Dataset

    KEPT = []

    class Leaking(Dataset):
        def __len__(self): return 4

        def __getitem__(self, index):
            KEPT.append(torch.ones(2**18))  # in the worker
            return torch.ones(2**18)

    def leak(): KEPT.append(torch.ones(2**18))

    def test_forked_process():
        process = multiprocessing.get_context("fork").Process(target=leak, name="child")
        process.start()
        process.join()
        assert process.exitcode == 0

    def test_fork():
        child = os.fork()
        if child == 0:
            leak()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    def test_workers():
        for batch in DataLoader(Leaking(), batch_size=2, num_workers=2, multiprocessing_context="fork"):
            assert batch.shape == (2, 2**18)

    def test_a_batch_is_kept():
        KEPT.extend(DataLoader(Leaking(), batch_size=2, num_workers=2, multiprocessing_context="fork"))

    def test_a_copy_is_kept():
        for batch in DataLoader(Leaking(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
            KEPT.append(batch.clone())
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_forked_processes_and_workers_of_loaders(run_outer):
    """What they take is not measured, which a note says; a copy of what a worker has sent is the test's."""
    inner = run_outer(FORKED, "--cudamem", "--cudamem-device=cpu", "-W", "ignore")
    outcomes = dict.fromkeys(("test_forked_process", "test_fork", "test_workers", "test_a_batch_is_kept"), "passed")
    assert inner.outcomes == {**outcomes, "test_a_copy_is_kept": "error"}, inner.out
    for name in outcomes:
        assert inner.test(name).findings == ()
        assert inner.test(name).window("call").complete
    assert inner.test("test_forked_process").notes == ("child was forked and is not measured: start it with spawn",)
    assert inner.test("test_fork").notes == ("1 process of os.fork() is not measured: start it with spawn",)
    assert inner.test("test_workers").notes == inner.test("test_a_batch_is_kept").notes == (UNMEASURED,)
    (found,) = inner.test("test_a_copy_is_kept").failing
    assert (found.verdict, found.bytes) == (Verdict.REACHABLE, 4 * 2**20)
    assert found.holder == "module test_it > KEPT (list)[2]"
