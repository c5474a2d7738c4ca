"""Everything that is written to files, on a disk that is full, read-only or forbidden, and killed at each step.

What was recorded is there whole: each file has its old content or its new one. One error names the file, and nothing
is left behind that could be taken for a record.
"""

from __future__ import annotations

import ast
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import cudamem_testing
from cudamem_testing.__main__ import main
from cudamem_testing.cycles import collect
from cudamem_testing.model.baselines import Measured
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.checked import Checked
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.ranks import child
from cudamem_testing.ranks.order import Order
from cudamem_testing.ranks.records import Written
from cudamem_testing.recorders import build, cache
from cudamem_testing.records.baselines import BASELINES
from cudamem_testing.records.expected.accept import accept_texts
from cudamem_testing.records.known_file import PLACE
from cudamem_testing.records.known_file import accept as accept_known
from cudamem_testing.records.update import accept as accept_baselines
from cudamem_testing.records.update import drop
from cudamem_testing.report.page import write_html
from cudamem_testing.report.report_files import write_json
from cudamem_testing.show.atomic_files import TEMPORARY, replace_file
from suites.disk import Disk, Fault, Killed, contents

CPU = Device("cpu")
MOST = 14
"""Steps at which a writer of more is stopped: the first and the last ones."""


def run_of(size: int) -> RunRecord:
    """A run whose results are to be recorded; other runs have other sizes."""
    cause = "leak | reachable | test_x.py::leak"
    leak = Finding(Kind.LEAK, Verdict.REACHABLE, Severity.FAIL, Reported("m"), size, CPU, cause=cause)
    measured = Measured(CPU, "here", {"requested": Spread(size, size)}, (), ("requested",), True)
    test = TestRecord("test_x.py::test_a", "error", findings=(leak,), measured=(measured,))
    text = Checked("test_x.py::test_a", "__cudamem__/test_x/test_a.txt", None, None, None, None, f"{size} B")
    return RunRecord(tests=(test,), checked=(text,))


OLD, NEW = run_of(2**20), run_of(2**30)


class Writer(NamedTuple):
    """What writes files: ``write`` gets a folder and a run, and says in lines what it could not write."""

    name: str
    write: Callable[[Path, RunRecord], Iterable[str]]
    files: tuple[str, ...]


def tried(act: Callable[[], object]) -> list[str]:
    """What an error says."""
    try:
        act()
    except OSError as error:
        return [str(error)]
    return []


def record_baselines(folder: Path, run: RunRecord) -> Iterable[str]:
    return accept_baselines(folder, run.tests).refused


def record_known(folder: Path, run: RunRecord) -> list[str]:
    from cudamem_testing.model.causes import causes

    return tried(lambda: accept_known(folder / PLACE, str(PLACE), folder, causes(run)))


def record_texts(folder: Path, run: RunRecord) -> list[str]:
    checks = run.checked
    side = folder / "__cudamem__/test_x/test_a.txt"
    if side.exists():
        from cudamem_testing.records.expected.source import digest

        checks = tuple(replace(one, digest=digest(side.read_bytes())) for one in checks)
    return [str(one) for one in accept_texts(folder, checks).refused]


def report(folder: Path, run: RunRecord) -> list[str]:
    return tried(lambda: write_json(run, folder / "report.json"))


def page(folder: Path, run: RunRecord) -> list[str]:
    return tried(lambda: write_html(run, folder / "new folder" / "report.html"))


def drop_baselines(folder: Path, run: RunRecord) -> Iterable[str]:
    if run is OLD:
        return record_baselines(folder, run)
    path = folder / "__cudamem__/test_x.json"
    return drop({path: BASELINES.read(path)}).refused


def cycle_page(folder: Path, run: RunRecord) -> list[str]:
    """A picture of a cycle, of which the warning says where it is, or why there is none."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "watch_cycles", lambda warn: warn)
        patch.setattr(collect._log, "warning", lambda text, *words: said.append((text % words).split("\n")[-1]))
        warn: Any = collect.warn_cycles(str(folder))
        random = os.urandom
        patch.setattr(os, "urandom", lambda number: b"\x01" * 6 if number == 6 else random(number))
        warn(SimpleNamespace(keeps=f"keeps {run.tests[0].findings[0].bytes} B", html=lambda: f"page of {run}"))
    return [line for line in said if not line.startswith("shown in ")]


def rank_file(folder: Path, run: RunRecord) -> list[str]:
    """What a process that a test started took."""
    order = Order(str(folder), 7, "rank 0", "", "", None, None)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        stream = io.StringIO()
        patch.setattr("sys.stderr", stream)
        child._write(order, Written("rank 0", ("cpu",), run.tests[0]))
    return stream.getvalue().splitlines()


WRITERS = (
    Writer("baselines", record_baselines, ("__cudamem__/test_x.json",)),
    Writer("known findings", record_known, ("__cudamem__/known.jsonl",)),
    Writer("expected texts", record_texts, ("__cudamem__/test_x/test_a.txt",)),
    Writer("report", report, ("report.json",)),
    Writer("page", page, ("new folder/report.html",)),
    Writer("dropped baselines", drop_baselines, ("__cudamem__/test_x.json",)),
    Writer("page of a cycle", cycle_page, ("cycle-010101010101.html",)),
    Writer("what a rank took", rank_file, ("7.json",)),
)
ALWAYS_BEFORE = ("dropped baselines",)


def prepared(folder: Path, writer: Writer, *, before: bool) -> Path:
    """An empty folder with a test file, and where asked what the writer made of an earlier run."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "test_x.py").touch()
    if before:
        assert not [*writer.write(folder, OLD)]
    return folder


def chosen(number: int) -> list[int]:
    return [*range(number)] if number <= MOST else [*range(MOST - 3), *range(number - 3, number)]


@pytest.mark.parametrize(
    ("writer", "before"),
    [
        pytest.param(
            writer,
            before,
            id=f"{writer.name}-{'replaced' if before else 'new'}",
            marks=[] if before and writer.name in ("baselines", "what a rank took") else [pytest.mark.slow],
        )
        for writer in WRITERS
        for before in (False, True)
        if before or writer.name not in ALWAYS_BEFORE
    ],
)
def test_nothing_recorded_is_lost(tmp_path: Path, writer: Writer, before: bool) -> None:
    folder = tmp_path / "project"
    with Disk(prepared(folder, writer, before=before)).working() as disk:
        old = contents(folder)
        assert not [*writer.write(folder, NEW)]
    new = contents(folder)
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    assert changed == {*writer.files}
    for fault in Fault:
        for first in chosen(len(disk.steps)):
            where = f"{fault.name} from step {first} ({disk.steps[first]})"
            said: list[str] = []
            with Disk(prepared(folder, writer, before=before), fault, first).working() as failing:
                try:
                    said = [*writer.write(folder, NEW)]
                except Killed:
                    assert fault is Fault.KILLED
            found = contents(folder)
            left = {name for name in found if name.endswith(TEMPORARY)}
            assert {name: found[name] for name in found if name not in left} in (old, new), where
            if fault is not Fault.KILLED:
                assert len(said) == failing.met, (where, said)
                assert not left or fault.value[0] != Fault.FULL.value[0], (where, left)
                for line in said:
                    assert os.strerror(fault.value[0] or 0) in line, where
                    assert any(part in line for part in writer.files[0].split("/")), (where, line)  # or its new folder
                    assert TEMPORARY not in line, (where, line)
            assert not [*writer.write(folder, NEW)], where  # the next run records it
            found = contents(folder)
            assert {name: found[name] for name in found if name not in left} == new, where


def test_a_plain_write_would_be_found(tmp_path: Path) -> None:
    """The control: a file that is written in place is lost on a full disk."""
    (tmp_path / "file").write_text("old")
    with Disk(tmp_path, Fault.FULL, 1).working(), pytest.raises(OSError, match="No space left"):
        (tmp_path / "file").write_text("newer")
    assert (tmp_path / "file").read_text() == "ne"


def test_files_of_killed_processes_are_removed_later(tmp_path: Path) -> None:
    path = tmp_path / "file[1]"
    for first in (1, 2):
        with Disk(tmp_path, Fault.KILLED, first).working(), pytest.raises(Killed):
            replace_file(path, b"new")
    left = sorted(tmp_path.iterdir(), key=lambda one: one.stat().st_size)
    assert [one.read_bytes() for one in left] == [b"n", b"new"]
    other = tmp_path / f".file.12345678{TEMPORARY}"  # of another file
    other.touch()
    for one in (left[0], other):
        os.utime(one, (0, 0))
    replace_file(path, b"newer")
    assert {*tmp_path.iterdir()} == {path, other, left[1]}  # the last may still be written


@pytest.mark.parametrize("damaged", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_library_is_whole_or_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool) -> None:
    """A truncated library would crash the process that loads it."""
    folder = tmp_path / "cache"
    target = folder / "library.so"

    def start() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        if damaged:
            build._kept(target, build.CPU_RECORDER, None, ())
            target.write_bytes(b"damaged")

    def built(command: list[str]) -> None:
        Path(command[-1]).write_bytes(b"library")

    monkeypatch.setattr(build, "_run_compiler", built)
    monkeypatch.setattr(build, "find_compiler", lambda environ: ["c++"])
    start()
    with Disk(folder).working() as disk:
        assert build._kept(target, build.CPU_RECORDER, None, ()) == target
    assert (cache.is_whole(target), target.read_bytes()) == (True, b"library")
    for fault in Fault:
        for first in range(len(disk.steps)):
            start()
            with Disk(folder, fault, first).working() as failing:
                try:
                    build._kept(target, build.CPU_RECORDER, None, ())
                except (OSError, Killed):  # of which the first goes to another folder
                    assert failing.met
            where = f"{fault.name} from step {first} ({disk.steps[first]})"
            assert not cache.is_whole(target) or target.read_bytes() == b"library", where
            assert build._kept(target, build.CPU_RECORDER, None, ()) == target
            assert (cache.is_whole(target), target.read_bytes()) == (True, b"library"), where


@pytest.mark.slow
def test_accept_records_the_rest_when_one_file_is_unwritable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind of record alone; the command fails, and says once for each file why."""
    monkeypatch.chdir(tmp_path)
    command = ["accept", "r.json", "--known", "--baselines", "--expected"]
    files = ("known.jsonl", "test_x.json", "test_a.txt")

    def start() -> None:
        shutil.rmtree("__cudamem__", ignore_errors=True)
        Path("test_x.py").touch()
        write_json(NEW, Path("r.json"))

    start()
    with Disk(tmp_path).working() as disk:
        assert main(command) == 0
    new = contents(tmp_path)
    capsys.readouterr()
    for fault in (Fault.FULL, Fault.READ_ONLY, Fault.KILLED):
        for first in range(len(disk.steps)):
            start()
            status = None
            with Disk(tmp_path, fault, first).working() as failing:
                try:
                    status = main(command)
                except Killed:
                    assert fault is Fault.KILLED
            said = "".join(capsys.readouterr())
            found = {name: text for name, text in contents(tmp_path).items() if not name.endswith(TEMPORARY)}
            assert found.items() <= new.items(), disk.steps[first]
            missing = [name for name in files if not any(one.endswith(name) for one in found)]
            if fault is not Fault.KILLED:
                assert bool(status) is failing.met is bool(missing), (disk.steps[first], said)
                assert said.count(os.strerror(fault.value[0] or 0)) == len(missing), said


PACKAGE = Path(cudamem_testing.__file__).parent
#: Modules that write files themselves, and the writer above or the test that holds them to it.
WRITE = {
    "show/atomic_files.py": "every writer",
    "records/store.py": "baselines, known findings, expected texts",
    "recorders/cache.py": "test_a_library_is_whole_or_compiled_again",
    "recorders/build.py": "test_a_library_is_whole_or_compiled_again",
    "ranks/records.py": "what a rank took",
    "ranks/processes.py": "suites/plugin/test_ranks.py",
    "run/evidence.py": "suites/plugin/test_failing_disk.py",
    "graphs/cuda.py": "torch's own file of a graph, in a folder for temporary files",
    "report/repair.py": "suites/report/test_repair.py",
    "show/plots/style.py": "into memory",
}
CHANGES = {"write_text", "write_bytes", "mkdir", "mkdtemp", "mkstemp", "unlink", "rename", "rmdir", "rmtree", "fdopen"}
CHANGES |= {"NamedTemporaryFile", "TemporaryDirectory", "TemporaryFile", "makedirs", "savefig", "symlink_to", "touch"}


def changes_files(call: ast.Call) -> bool:
    name = (
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "").replace("rename", "")
    )
    modes = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return name in CHANGES or (name == "open" and any({*mode} & {*"wxa"} and {*mode} <= {*"wxabt+"} for mode in modes))


def test_no_other_module_writes_files() -> None:
    word = re.compile(rf"\b({'|'.join(sorted(CHANGES))}|open)\(")  # only what may be one is parsed
    texts = {file.relative_to(PACKAGE).as_posix(): file.read_text() for file in PACKAGE.rglob("*.py")}
    calls = {
        name: [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        for name, text in texts.items()
        if word.search(text)
    }
    assert {name for name, found in calls.items() if any(map(changes_files, found))} == {*WRITE}
