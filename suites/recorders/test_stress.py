"""Threads with mutexes of their own, allocations, new stacks, code that ends, collections and fork, all at once."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from cudamem_testing.recorders.build import Library, _arguments, find_compiler
from suites import forked

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = max(1, min(5, settings.default.max_examples // 15))  # five in a full run


def done(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=300, check=False
    )


def program(source: Path, target: Path, *flags: str) -> str:
    """A program of one C++ file against torch's c10."""
    whole = _arguments(Library("", "", (), "c++17", ("c10",)), [source])
    arguments = [word for word in whole if word not in ("-shared", "-O2")]
    library = arguments[arguments.index("-L") + 1]
    command = [*find_compiler(os.environ), *flags, *arguments, f"-Wl,-rpath,{library}", "-o", str(target)]
    built = done(command)
    assert built.returncode == 0, shlex.join(command) + built.stderr
    return str(target)


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_a_sanitizer_finds_nothing(sanitizer: str, tmp_path: Path) -> None:
    flag = f"-fsanitize={sanitizer}"
    empty = tmp_path / "empty.cpp"
    empty.write_text("int main() { return 0; }")
    tried = done([*find_compiler(os.environ), flag, str(empty), "-o", str(tmp_path / "empty")])
    if tried.returncode or done([str(tmp_path / "empty")]).returncode:
        pytest.skip(f"no sanitizer here: {flag} does not work")
    stress = program(
        HERE / "stress.cpp", tmp_path / "stress", flag, "-O1"
    )  # "-g", which takes half as long again, would show lines
    ran = done(
        [stress, str(SECONDS)],
        TSAN_OPTIONS="halt_on_error=1 die_after_fork=0",
        ASAN_OPTIONS="detect_leaks=0",  # the recorder is never destroyed
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    words = ran.stdout.split()
    counts = dict(zip(words[1::2], map(int, words[::2]), strict=True))
    assert (counts.pop("children") > 0) is (sanitizer == "thread")  # see kForks
    assert all(count > 0 for count in counts.values()), ran.stdout


DEADLOCK = """
import ctypes, faulthandler, gc, os, sys, threading, time, warnings
import torch
from cudamem_testing.recorders.native import NativeRecorder

faulthandler.dump_traceback_later(240, exit=True)
warnings.simplefilter("ignore")
native = NativeRecorder.load()
native.install()
native.restart_events(1000)
native.set_recording(stacks=True, events=True)
fill, look = ctypes.CDLL(sys.argv[1]).helper_fill, ctypes.PyDLL(sys.argv[1]).helper_look
begun, least = time.monotonic(), float(sys.argv[2])
counts = {"fills": 0, "looks": 0, "forks": 0}

def is_over():
    return time.monotonic() - begun >= (least if all(counts.values()) else least + 60)

def use():
    while not is_over():
        space = {}
        exec("def call(fill):\\n fill(1000)", space)  # a stack that was not seen before
        space["call"](fill)
        counts["fills"] += 1

threads = [threading.Thread(target=use) for _ in range(3)]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    look()
    counts["looks"] += 1
    if counts["looks"] % 500 == 0:
        native.trim_stacks()
        gc.collect(0)
    if counts["looks"] % 1000 == 0 and counts["forks"] < 5:
        child = os.fork()
        if child == 0:
            compile("1", "<child>", "eval")  # code that ends
            torch.empty(100)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        counts["forks"] += 1
assert all(counts.values()), counts
print("done")
"""


def test_a_cache_under_a_mutex_does_not_deadlock(helper: ctypes.PyDLL) -> None:
    ran = done([forked.python(), "-c", DEADLOCK, helper._name, str(SECONDS)])
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")


def pythons() -> list[str]:
    """Every other Python that is found: in the path, and those of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [shutil.which(f"python3.{minor}") for minor in range(10, 16)]
    found += sorted(map(str, (root / "versions").glob("3.1*/bin/python3")))
    there = [str(Path(one).resolve()) for one in found if one]
    return [one for one in dict.fromkeys(there) if done([one, "-c", ""]).returncode == 0]  # pyenv's may lead nowhere


def test_stacks_are_right_in_every_python(tmp_path: Path) -> None:
    library = str(tmp_path / "alone.so")
    flags = ["-O2", "-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
    built = done([*find_compiler(os.environ), *flags, str(HERE / "alone.cpp"), "-o", library])
    assert built.returncode == 0, built.stderr
    failed = {}
    for python in dict.fromkeys((sys.executable, *pythons())):
        ran = done([python, str(HERE / "alone.py"), library], PYTHONPATH=str(ROOT))
        if (ran.returncode, ran.stdout) != (0, "right\n"):
            failed[python] = ran.stdout + ran.stderr
    assert failed == {}
