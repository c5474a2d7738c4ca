"""Processes that begin with torch and the package imported: they end, answer and are counted as others are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from suites import forked

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system cannot wait for a process it did not start"),
]
TELLS = """
import json, os, sys
there = "torch" in sys.modules
print(json.dumps([there, "cudamem_testing" in sys.modules, sys.argv, os.getcwd(), sys.path[:2], os.environ.get("X")]))
sys.exit(input())
"""


def run(*arguments: str, python: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [python or forked.python(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_a_fork_begins_and_ends_as_an_interpreter_does(tmp_path: Path) -> None:
    environment = {**os.environ, "X": "y", "PYTHONPATH": str(tmp_path)}
    found = [
        run("-c", TELLS, "a", "-b", python=python, cwd=tmp_path, env=environment, input="wrong\n")
        for python in (None, sys.executable)
    ]
    told = [json.loads(one.stdout) for one in found]
    assert told == [
        [there, there, ["-c", "a", "-b"], str(tmp_path), ["", str(tmp_path)], "y"] for there in (True, False)
    ]
    assert [(one.returncode, one.stderr) for one in found] == [(1, "wrong\n")] * 2


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 15)", -15), ("1 / 0", 1), ("import json", 0)],
    ids=["status", "signal", "error", "end"],
)
def test_how_it_ends_is_how_the_command_ends(code: str, status: int) -> None:
    done = run("-c", code)
    assert done.returncode == status
    assert ("ZeroDivisionError" in done.stderr) == ("1 / 0" in code)


def test_a_module_runs_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import sys, atexit\natexit.register(print, 'last')\nprint(__name__, sys.argv[1:])\n"
    )
    assert run("-m", "own", "x", cwd=tmp_path).stdout == "__main__ ['x']\nlast\n"


def test_a_script_runs_with_its_folder_and_open_files(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import os, sys\nos.write(int(sys.argv[1]), b'told')\n")
    (tmp_path / "script.py").write_text("import beside\nprint(__name__)\n")
    reads, writes = os.pipe()
    done = run(str(tmp_path / "script.py"), str(writes), pass_fds=[writes])
    os.close(writes)
    assert (done.stdout, os.read(reads, 10)) == ("__main__\n", b"told")
    os.close(reads)


def test_plugins_of_pytest_are_left_to_it() -> None:
    """Only pytest itself is there: imported before it runs, a plugin would be one whose asserts it cannot rewrite."""
    code = "import sys; print({'pytest', 'hypothesis', 'pytest_benchmark', 'xdist'} & {*sys.modules})"
    assert run("-c", code).stdout == "{'pytest'}\n"


def test_what_multiprocessing_spawns_begins_in_the_same_way() -> None:
    code = """
import multiprocessing
told = "import sys, time; print('torch' in sys.modules, time.process_time() < 0.5)"
process = multiprocessing.get_context("spawn").Process(target=exec, args=(told,))
process.start()
process.join()
"""
    assert run("-c", code).stdout == "True True\n"


def test_the_server_with_the_compiler_is_a_fork_of_the_other() -> None:
    code = "import sys; print('torch' in sys.modules, 'torch._dynamo' in sys.modules)"
    commands = [forked.python(compiler=compiler) for compiler in (False, True)]
    assert [run("-c", code, python=one).stdout for one in commands] == ["True False\n", "True True\n"]


def test_what_only_a_new_process_reads_has_a_new_process() -> None:
    code = "import sys; print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONHASHSEED": "5"}
    assert [run("-c", code).stdout, run("-W", "error", "-c", code).stdout] == ["True\n", "False\n"]
    assert run("-c", code, env=environment).stdout == "False\n"
    compiled = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": "/nowhere"}  # torch sets it where it compiles
    assert run("-c", code, env=compiled).stdout == "True\n"


def test_a_command_that_is_killed_ends_its_fork(tmp_path: Path) -> None:
    code = "import os, time, pathlib; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(60)"
    with pytest.raises(subprocess.TimeoutExpired):
        run("-c", code, cwd=tmp_path, timeout=2)
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize("compiler", [False, True])
def test_the_time_of_a_fork_is_counted(*, compiler: bool) -> None:
    python = forked.python(compiler=compiler)
    before = forked.processor_time()
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    run("-c", busy, python=python)
    assert 0.3 <= forked.processor_time() - before < 1.0
