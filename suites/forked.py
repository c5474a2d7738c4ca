"""A Python that starts with torch and the package imported: ``python()`` is a command that takes the place of one.

Importing them takes a process three seconds of the processor, most of what a test takes that needs a process. The
command sends its arguments, environment and open files to a server, which imported torch, pytest and the package once
and forks; it ends as the forked process ends. Processes that pytest-xdist, torchrun or multiprocessing start from there
begin in the same way. ``python(compiler=True)`` starts with torch's compiler as well, which any optimizer of torch
imports: as much time again, and as many objects. Its server is a fork of the other one.

What an interpreter reads when it starts cannot be given to a fork: with other options than ``-u``, or other variables
that say how Python or a library starts, the command is an ordinary interpreter. So it is where a system cannot fork. A
test of how something is imported, or of a process that has not imported it, names ``sys.executable`` instead.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

#: Variables that a fork takes over, though their names begin as those do that only a new process reads.
TAKEN_OVER = {
    *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "OMP_NUM_THREADS"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),  # read when a card is first used
    "TORCHINDUCTOR_CACHE_DIR",  # read, and set, when something is first compiled
}
AT_THE_START = ("PYTHON", "PYTORCH", "TORCH", "OMP_", "MKL_", "KMP_", "LD_", "MALLOC_")
#: Modules of the package that import hypothesis or pytest-benchmark, and one that is run instead.
OF_OTHER_PLUGINS = {"strategies", "example_bodies", "given", "benchmarks", "__main__"}
#: As many as a system passes at once.
MOST_FILES = 253
_PYTHON: dict[bool, str] = {}
_SERVERS: list[int] = []


def python(*, compiler: bool = False) -> str:
    """The path of the command; the first call in a process starts its server, which ends with the process."""
    if compiler not in _PYTHON:
        one_already = os.path.exists(os.path.join(os.path.dirname(sys.executable), "socket"))
        forks = hasattr(os, "pidfd_open") and not one_already
        if not forks:
            return sys.executable
        _PYTHON[compiler] = _start(python(), "torch._dynamo") if compiler else _start(sys.executable, "torch")
    return _PYTHON[compiler]


def processor_time() -> float:
    """Seconds of the servers and of the processes that they forked, of which this process waits for none."""
    return sum(map(_processor_time, _SERVERS))


def _processor_time(process: int) -> float:
    with open(f"/proc/{process}/stat", encoding="ascii") as file:
        ticks = file.read().rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _start(interpreter: str, module: str) -> str:
    import atexit
    import shutil
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="forked")
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = os.path.join(folder, "python")
    with open(command, "w", encoding="utf-8") as file:
        file.write(f"#!{sys.executable} -IS\nimport runpy\n")
        file.write(f"runpy.run_path({__file__!r})['ask']({folder!r}, {sys.executable!r}, {_of_the_start(own)!r})\n")
    os.chmod(command, 0o700)
    ended = [interpreter, __file__, folder, module]
    server = subprocess.Popen(ended, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=own)
    assert server.stdout is not None
    ready, _, process = server.stdout.readline().partition(b" ")
    if ready != b"ready":
        raise RuntimeError("the server of processes with torch did not start")
    _SERVERS.append(int(process))

    def end() -> None:
        server.communicate()  # it ends with its input
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return command


def _of_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    """What decides how a process starts."""
    names = [name for name in environment if name.startswith(AT_THE_START) and name not in TAKEN_OVER]
    return {name: environment[name] for name in sorted(names)}


def ask(folder: str, interpreter: str, start: Mapping[str, str]) -> None:
    """Be the process that the arguments of this one name: through the server, or an interpreter of its own."""
    arguments = sys.argv[1:]
    plain = [one for one in arguments[:2] if one != "-u"][:1]
    if not plain or (plain[0][:1] == "-" and plain[0] not in ("-c", "-m")) or _of_the_start(os.environ) != start:
        os.execv(interpreter, [interpreter, *arguments])
    files = [file for file in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{file}")]
    request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ), "files": files}
    text = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.path.join(folder, "socket"))
        socket.send_fds(server, [struct.pack("I", len(text))], files)
        server.sendall(text)
        answer = server.recv(4)
        server.recv(1)  # until the time of the fork is counted
    status = struct.unpack("i", answer)[0] if answer else 1
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    os._exit(status)


def import_package() -> None:
    """Import all of the package that imports no plugin of pytest: it must rewrite their asserts."""
    import importlib
    from pathlib import Path

    import cudamem_testing

    folder = Path(cudamem_testing.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        names = file.relative_to(folder.parent).with_suffix("").parts
        if not OF_OTHER_PLUGINS & {*names}:
            importlib.import_module(".".join(names).removesuffix(".__init__"))


def serve(folder: str, module: str) -> Callable[[], None] | None:
    """Fork for each request until the input ends; returns in the forked processes, with what they run."""
    own_path = sys.path[1:]
    import importlib

    import execnet  # noqa: F401
    import pytest  # noqa: F401 - no plugin of it, whose asserts could not be rewritten any more

    importlib.import_module(module)
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import_package()
    del sys.path[0]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(folder, "socket"))
    listener.listen(64)
    print("ready", os.getpid(), flush=True)
    ends, ended = socket.socketpair()
    for end in (ends, ended):
        end.setblocking(False)
    signal.set_wakeup_fd(ended.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, ends, 0], [], [])
        if ends in ready:
            ends.recv(1024)
        while running and (one := os.waitpid(-1, os.WNOHANG)[0]):
            running.pop(one).close()
        if 0 in ready:
            return None
        if listener in ready:
            asked, _ = listener.accept()
            running[process := os.fork()] = asked
            if process == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in {listener, ends, ended, *running.values()} - {asked}:
                    other.close()
                return _supervised(asked, os.path.join(folder, "python"), own_path)


def _supervised(asked: socket.socket, executable: str, path: Sequence[str]) -> Callable[[], None]:
    """Returns in the process that runs; the other tells who asked how it ends, and ends it if who asked is gone."""
    head, files, _, _ = socket.recv_fds(asked, 4, MOST_FILES)
    (size,) = struct.unpack("I", head)
    text = b""
    while len(text) < size:
        text += asked.recv(size - len(text))
    running = os.fork()
    if running == 0:
        asked.close()
        return lambda: _run(json.loads(text), files, executable, path)
    for file in (0, 1, 2, *files):
        os.close(file)  # else who reads them would wait for this process
    waited = os.pidfd_open(running)
    if waited not in select.select([asked, waited], [], [])[0]:
        os.kill(running, signal.SIGKILL)
    _, status = os.waitpid(running, 0)
    with suppress(OSError):  # who asked is gone
        asked.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _run(request: dict[str, Any], files: Sequence[int], executable: str, path: Sequence[str]) -> None:
    """Do what a new interpreter does with its arguments; the end of one takes as long as the rest, and is left out."""
    import atexit
    import fcntl
    import random
    import runpy
    import threading
    import traceback
    import types
    from multiprocessing import spawn

    import torch

    aside = [fcntl.fcntl(file, fcntl.F_DUPFD, 10 + max(*request["files"], *files)) for file in files]
    for file, place in zip(aside, request["files"], strict=True):
        os.dup2(file, place)
    for file in {*aside, *files} - {*request["files"]}:
        os.close(file)
    arguments, environment = request["arguments"], request["environment"]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(environment)
    if "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    random.seed()
    unbuffered = arguments[0] == "-u"
    if unbuffered or environment.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    kind, *rest = arguments[unbuffered:]
    what = rest.pop(0) if kind in ("-c", "-m") else kind
    first = {"-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(os.path.abspath(what)))
    sys.executable = executable
    spawn.set_executable(executable)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    own = environment.get("PYTHONPATH", "")
    sys.path[:] = [first, *(own.split(os.pathsep) if own else ()), *path]
    sys.argv[:] = [kind, *rest]
    status = 1
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        elif kind == "-c":
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(what, "<string>", "exec"), vars(main))
        else:
            runpy.run_path(what, run_name="__main__")
        status = 0
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    if (begun := serve(*sys.argv[1:])) is not None:
        begun()
