"""The CPU recorder through the life of a process: fork, workers, foreign allocators, a second copy, exit."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cudamem_testing.recorders.build import RecorderUnavailable, compiled
from cudamem_testing.recorders.native import NativeRecorder, introduced
from suites import forked

pytestmark = pytest.mark.subprocess


def run(folder: Path, program: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Lines that a program printed; it must end well and say nothing on stderr."""
    script = folder / "program.py"
    script.write_text(program)
    done = subprocess.run([python, str(script), *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


# Python 3.12 and later warn of each fork beside other threads: those of a library such as OpenBLAS, or of the program.
FILTER = r"""
import warnings
FORK = r"This process \(pid=\d+\) is multi-threaded, use of fork\(\) may lead to deadlocks in the child"
warnings.filterwarnings("ignore", FORK, DeprecationWarning)
"""

FORKED = (
    FILTER
    + """
import os, sys
import torch
from cudamem_testing import Memory

torch.set_num_threads(1)
with Memory.on("cpu") as memory, memory.window("around") as around:
    kept = torch.ones(1000)
    pid = os.fork()
    if pid == 0:
        with memory.window("in the child") as window:
            torch.ones(1000)
        found = window["cpu"]
        print(found.start, found.peak, found.retained, found.allocations, found.complete, *found.notes)
        try:
            with memory.limit(100):
                torch.ones(1000)
        except torch.OutOfMemoryError:
            print("the limit holds")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
print(around["cpu"].peak_growth, around["cpu"].complete)
"""
)


@pytest.mark.slow
def test_a_fork_knows_no_numbers_but_limits_hold(tmp_path: Path) -> None:
    assert run(tmp_path, FORKED, python=forked.python()) == [
        "None None None None False a process that was forked from the measured one",
        "the limit holds",
        "4000 True",
    ]


FORK_AND_EXIT = (
    FILTER
    + """
import atexit, os, sys, threading, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from cudamem_testing.recorders.native import NativeRecorder

torch.set_num_threads(1)
native = NativeRecorder.load()
native.install()
native.restart_events(1000)
native.set_recording(stacks=True, events=True)
slot = native.slot()
kept = torch.ones(1000)
start = slot.read()

def in_child(body):
    sys.stdout.flush()  # else the child prints it too
    pid = os.fork()
    if pid == 0:
        try:
            body()
            sys.stdout.flush()
            os._exit(0)
        except BaseException as error:
            print("child:", error, flush=True)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def passive():
    global kept
    assert not native.is_installed()
    before = slot.peek()
    more = torch.ones(5000)
    kept = None
    del more
    assert slot.peek() == before

def restarts():
    global kept
    early = torch.ones(10)  # while passive
    native.install()
    assert native.is_installed()
    assert slot.read()[:2] == (0, 0)
    assert native.scan() == []
    assert native.events().events == []
    late = torch.ones(100)
    (block,) = native.scan()
    assert (block.size, native.frames(block.stack)[0].qualname) == (400, "restarts")
    kept = None
    del early
    assert slot.read().allocated == 400
    del late
    assert slot.read().allocated == 0
    assert in_child(passive) == 0

print("passive child", in_child(passive))
print("child that restarts", in_child(restarts))
print("parent unchanged", slot.read() == start, native.is_installed())

# Fork while other threads allocate: no thread may die holding the mutex.
stop = threading.Event()
def churn():
    while not stop.is_set():
        torch.empty(100)
churners = [threading.Thread(target=churn) for _ in range(2)]
for thread in churners: thread.start()
print("forks under load", [in_child(lambda: torch.empty(1000)) for _ in range(20)] == [0] * 20)
stop.set()
for thread in churners: thread.join()

start = slot.read().allocated
data = TensorDataset(torch.arange(64.0).reshape(16, 4))
loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
total = sum(batch.sum().item() for (batch,) in loader)
del data, loader
print("workers", total, slot.read().allocated - start)

outlives = torch.ones(100)
uncounted = torch.ones(10)
native.uninstall()
level = slot.read().allocated
del uncounted
print("freed after uninstall", level - slot.read().allocated)
native.install()

@atexit.register
def late():  # registered after the recorder's own: runs before it; the frames below are still there
    torch.empty(10)

class AtTheEnd:
    def __init__(self): self.tensor = torch.ones(50)
    def __del__(self): torch.empty(10).add(1)
sys.cudamem_last = AtTheEnd()

def daemon():  # asleep when the interpreter ends (torch itself aborts if it is in an operator then)
    mine = torch.ones(10)
    asleep.set()
    time.sleep(1000)
asleep = threading.Event()
threading.Thread(target=daemon, daemon=True).start()
asleep.wait()
print("end")
"""
)


@pytest.mark.slow
def test_fork_workers_uninstall_and_exit(tmp_path: Path) -> None:
    assert run(tmp_path, FORK_AND_EXIT) == [
        "passive child 0",
        "child that restarts 0",
        "parent unchanged True True",
        "forks under load True",
        "workers 2016.0 0",
        "freed after uninstall 40",
        "end",
    ]


SPAWN = """
import sys
import torch, torch.multiprocessing as multiprocessing
from cudamem_testing.recorders.native import NativeRecorder

def child(queue, tensor):
    native = NativeRecorder.load()
    print("child", native.is_installed(), tensor.sum().item(), flush=True)
    native.install()
    with native.slot() as slot:
        mine = torch.ones(10)
        print("child counts", slot.read().allocated, flush=True)
    queue.put(tensor + 1)
    queue.get()

if __name__ == "__main__":
    torch.set_num_threads(1)
    native = NativeRecorder.load()
    native.install()
    context = multiprocessing.get_context("spawn")
    context.set_executable(sys.argv[1])
    there, tensor = context.SimpleQueue(), torch.ones(1000)
    process = context.Process(target=child, args=(there, tensor))
    process.start()
    back = there.get()
    print("back", back.sum().item(), native.is_installed())
    there.put(None)
    process.join()
    print("exit", process.exitcode)
"""


@pytest.mark.slow
def test_spawned_processes_start_without_it(tmp_path: Path) -> None:
    lines = run(tmp_path, SPAWN, sys.executable, python=forked.python())
    assert [line for line in lines if line.startswith("child")] == ["child False 1000.0", "child counts 40"]
    assert [line for line in lines if not line.startswith("child")] == ["back 2000.0 True", "exit 0"]


def test_foreign_allocator_on_top_is_never_wrapped(native: NativeRecorder, helper: ctypes.PyDLL) -> None:
    with native.slot() as slot:
        helper.helper_put_foreign_on_top()
        try:
            assert not native.is_installed()
            with pytest.raises(RecorderUnavailable) as raised:
                native.install()
            assert str(raised.value) == (
                "another CPU allocator was registered over the recorder; restore the earlier one first"
            )
            native.uninstall()
            assert helper.helper_foreign_is_on_top()
            before = slot.read().allocated
            pointer = helper.helper_raw_allocate(100)
            assert slot.read().allocated == before
            helper.helper_raw_free(pointer)
        finally:
            helper.helper_take_foreign_away()
        native.install()
        assert native.is_installed()


def test_a_second_copy_is_refused(native: NativeRecorder, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"
    shutil.copy(compiled(), copy)
    second = NativeRecorder(*introduced(ctypes.PyDLL(str(copy))))
    with pytest.raises(RecorderUnavailable, match="another copy of the CPU recorder is in place in this process"):
        second.install()
    assert native.is_installed()


def test_a_process_has_one_recorder_for_any_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = NativeRecorder.load()
    monkeypatch.delenv("CUDAMEM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    said: list[str] = []
    second = NativeRecorder.load(said.append)
    assert second._library is first._library
    assert (said, [*tmp_path.iterdir()]) == ([], [])  # nothing is compiled again


RELEASED = """
import gc, torch
from cudamem_testing.model.counters import Counters
from cudamem_testing.recorders.native import ANYWAY, NativeRecorder

class Holder:
    pass

native = NativeRecorder.load()
native.install()
with native.slot() as slot:
    take = slot.counting(Counters).take
gc.disable()
holder = Holder()
holder.me, holder.tensor = holder, torch.ones(1000)
del holder
try:
    raise KeyError  # an error that is raised while another is handled is an object at once
except KeyError:
    gc.set_threshold(1)
    gc.enable()
    try:
        take(ANYWAY)
    except ValueError as error:
        print(error)
"""


def test_garbage_is_freed_while_an_error_is_raised(tmp_path: Path) -> None:
    assert run(tmp_path, RELEASED) == ["this observer of the CPU recorder was released"]
