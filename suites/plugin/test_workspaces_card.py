"""Workspaces that a backward pass leaves, which autograd's thread has for itself: the first test alone is asked."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest
import torch

from cudamem_testing import simulated_cuda
from cudamem_testing.torch_api import clear_workspaces, cuda, take_workspaces
from suites import forked
from suites.plugin.apart import run_apart

CONFTEST = """
import torch

counts, read = [0], torch._C._cuda_memorySnapshot

def counted(*arguments):
    counts[-1] += 1
    return read(*arguments)

torch._C._cuda_memorySnapshot = counted

def pytest_runtest_logfinish():
    counts.append(0)

def pytest_sessionfinish():
    torch._C._cuda_memorySnapshot = read
    print("\\nREADS", counts)
"""
TRAINING = """
import pytest, torch

@pytest.mark.parametrize("number", range(5))
def test_trains(number):
    model = torch.nn.Linear(64, 64, device="cuda")
    model(torch.ones(8, 64, device="cuda")).square().sum().backward()
"""


def reads_of_tests(python: str, folder: Path, device: str) -> list[int]:
    """How often the record of the card was read in each test."""
    arguments = "-q", "-p", "cudamem_testing.plugin", "--cudamem", f"--cudamem-device={device}"
    said = run_apart(python, folder, {"conftest.py": CONFTEST, "test_it.py": TRAINING}, *arguments)
    found = re.search(r"^READS \[(.*)\]$", said, re.MULTILINE)
    assert found is not None, said
    return [int(number) for number in found[1].split(", ")][:4]


@pytest.mark.subprocess
@pytest.mark.simulated_card
def test_the_record_is_read_in_the_first_test_alone(tmp_path: Path) -> None:
    first, *others = reads_of_tests(forked.python(compiler=True), tmp_path, "simulated:h100")
    assert first > 0
    assert others == [0, 0, 0]


@pytest.mark.gpu
@pytest.mark.subprocess
def test_the_record_is_read_in_the_first_test_alone_on_a_card(tmp_path: Path) -> None:
    first, *others = reads_of_tests(sys.executable, tmp_path, "cuda")
    assert first > 0
    assert others == [0, 0, 0]


@pytest.mark.simulated_card
@pytest.mark.parametrize("named", [True, False])
def test_both_threads_take_what_they_had(named: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing waits until autograd's threads have their names: backward passes on a simulated card run in this one."""
    if not named:
        monkeypatch.setattr(cuda, "TASKS", str(tmp_path))
    with simulated_cuda("h100"):
        x = torch.ones(16, 16, device="cuda", requires_grad=True)
        torch.addmm(x[0], x, x).sum().backward()
        del x
        whole = torch.cuda.memory_allocated()
        clear_workspaces()
        assert torch.cuda.memory_allocated() == 0
        take_workspaces(0)
        of_this_thread = torch.cuda.memory_allocated()
        assert 0 < of_this_thread < whole
        take_workspaces(0, backward=True)
        assert torch.cuda.memory_allocated() == 2 * of_this_thread


def test_names_of_threads_say_whether_it_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "comm").write_text("pt_autograd_3\n")
    monkeypatch.setattr(cuda, "TASKS", str(tmp_path))
    assert [cuda.has_backward_thread(index) for index in (0, 3)] == [False, True]
    monkeypatch.setattr(cuda, "TASKS", str(tmp_path / "none"))
    assert cuda.has_backward_thread(3) is False


@pytest.mark.gpu
def test_an_action_runs_in_the_thread_of_a_card() -> None:
    with torch.inference_mode():
        threads: list[int] = []
        cuda.in_backward_thread(0, lambda: threads.append(threading.get_native_id()))
        assert [Path(cuda.TASKS, str(one), "comm").read_text() for one in threads] == ["pt_autograd_0\n"]


@pytest.mark.simulated_card
def test_an_action_runs_in_this_thread_on_a_simulated_card() -> None:
    with simulated_cuda("h100"), torch.inference_mode():
        threads: list[int] = []
        cuda.in_backward_thread(0, lambda: threads.append(threading.get_native_id()))
        assert threads == [threading.get_native_id()]

        def fail() -> None:
            raise LookupError("here")

        with pytest.raises(LookupError, match=r"^here$"):
            cuda.in_backward_thread(0, fail)
        assert torch.cuda.memory_allocated() == 0
