"""Compiling the CPU recorder: where it goes, once for all processes, and what is said when it cannot be."""

from __future__ import annotations

import itertools
import os
import re
import stat
import subprocess
from pathlib import Path
from threading import Thread

import pytest
import torch

from cudamem_testing.recorders import build
from cudamem_testing.recorders import cache as caching
from cudamem_testing.recorders.build import (
    CARD_RECORDER,
    COLLECTOR_WATCH,
    CPU_RECORDER,
    Library,
    RecorderUnavailable,
    compiled,
    compiled_before,
    find_compiler,
    obstacle,
)
from cudamem_testing.simulated import native
from cudamem_testing.snapshots import native as snapshots
from cudamem_testing.snapshots.whatif import model
from cudamem_testing.torch_api.headers import cxx_standard
from suites import forked

LIBRARIES = (
    CPU_RECORDER,
    CARD_RECORDER,
    COLLECTOR_WATCH,
    native.LIBRARY,
    native.ENGINE,
    model.LIBRARY,
    snapshots.LIBRARY,
)
INCLUDE = re.compile(r'^#include "(.*)"$', re.MULTILINE)


def fake_compiler(folder: Path, body: str) -> Path:
    """A script in place of the compiler; `$out` is the file to write."""
    script = folder / "fake c++"
    script.write_text(f'#!/bin/sh\nfor last; do out="$last"; done\n{body}\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CUDAMEM_CACHE", str(folder))
    return folder


def use_compiler(monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
    monkeypatch.setenv("CXX", f"'{script}' -fast")


def test_is_named_by_torch_and_says_once_that_it_compiles(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, fake_compiler(tmp_path, f'echo "$@" >> {tmp_path}/log; echo library > "$out"'))
    said: list[str] = []
    path = compiled(said.append)
    assert said == [f"compiling the CPU recorder for torch {torch.__version__} (once, a few seconds)"]
    assert path.parent == cache
    assert path.name.startswith(f"cpu_recorder-{torch.__version__}-")
    assert path.read_text() == "library\n"
    assert compiled(said.append) == path
    assert len(said) == 1
    (command,) = (tmp_path / "log").read_text().splitlines()
    assert command.startswith(f"-fast -O2 -std={cxx_standard()} ")
    assert f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}" in command
    assert sorted(file.suffix for file in cache.iterdir()) == [".lock", ".sha256", ".so"]


def includes(source: Path) -> list[str]:
    return INCLUDE.findall(source.read_text())


@pytest.mark.parametrize("library", LIBRARIES, ids=[library.name for library in LIBRARIES])
def test_name_changes_with_a_source(library: Library, tmp_path: Path) -> None:
    here, copy = library.folder, tmp_path / library.folder.name
    copy.mkdir()
    for name in library.sources:
        (copy / name).resolve().parent.mkdir(exist_ok=True)
        (copy / name).write_bytes((here / name).read_bytes())
    first = build._fingerprint(library, copy)
    assert first == build._fingerprint(library, here)
    header = copy / library.sources[-1]
    header.write_text(header.read_text() + "\n")
    assert build._fingerprint(library, copy) != first


@pytest.mark.parametrize("library", LIBRARIES, ids=[library.name for library in LIBRARIES])
def test_hash_covers_every_source_that_is_included(library: Library) -> None:
    included = {unit.resolve() for unit in library.units}
    while more := {(one.parent / name).resolve() for one in included for name in includes(one)} - included:
        included |= more
    assert included == {(library.folder / name).resolve() for name in library.sources}


def test_every_source_is_compiled() -> None:
    for folder in {library.folder for library in LIBRARIES}:
        beside = {file.name for file in folder.iterdir() if file.suffix in (".cpp", ".h")}
        compiled = {name for library in LIBRARIES if library.folder == folder for name in library.sources}
        assert beside == {name for name in compiled if "/" not in name}


def test_each_library_is_compiled_with_what_it_needs(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, fake_compiler(tmp_path, f'echo "$@" >> {tmp_path}/log; echo library > "$out"'))
    said: list[str] = []
    path = compiled(said.append, CARD_RECORDER)
    assert said == [f"compiling the recorder of cards for torch {torch.__version__} (once, a few seconds)"]
    assert path.name.startswith(f"card_recorder-{torch.__version__}-")
    assert compiled_before() is None
    assert compiled_before(CARD_RECORDER) == path
    (command,) = (tmp_path / "log").read_text().splitlines()
    assert command.startswith("-fast -O2 -std=c++20 ")
    assert " -lc10 -ltorch_cpu -o " in command


def test_a_library_of_no_torch_is_compiled_without_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, fake_compiler(tmp_path, f'echo "$@" >> {tmp_path}/log; echo library > "$out"'))
    monkeypatch.setattr(build, "torch", None)
    said: list[str] = []
    path = compiled(said.append, snapshots.LIBRARY)
    assert said == ["compiling the reader of large snapshots (once, a few seconds)"]
    assert re.fullmatch(r"snapshot_reader-[0-9a-f]{16}\.so", path.name)
    assert compiled_before(snapshots.LIBRARY) == path
    assert "torch" not in (tmp_path / "log").read_text().replace(str(tmp_path), "")


@pytest.mark.parametrize("cores", [1, 2])
def test_as_many_files_are_compiled_at_once_as_there_are_cores(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    log = tmp_path / "log"
    work = f'echo "+ $*" >> {log}; sleep 0.1; echo "- $*" >> {log}; echo library > "$out"'
    use_compiler(monkeypatch, fake_compiler(tmp_path, work))
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    compiled(None, native.LIBRARY)
    signs = [line[0] for line in log.read_text().splitlines()]
    at_once = [*itertools.accumulate(1 if sign == "+" else -1 for sign in signs)]
    assert (max(at_once), len(signs)) == (cores, 8)


def test_several_files_are_compiled_side_by_side_and_linked(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    wait = f"until [ $(wc -l < {log}) -ge 3 ]; do sleep 0.01; done"
    use_compiler(monkeypatch, fake_compiler(tmp_path, f'echo "$@" >> {log}; {wait}; echo library > "$out"'))
    said: list[str] = []
    path = compiled(said.append, native.LIBRARY)
    time = "some 12 seconds on two cores"
    assert said == [f"compiling the simulated card for torch {torch.__version__} (once, {time})"]
    *parts, last = log.read_text().splitlines()
    assert sorted(Path(part.split(" -c ")[1].rsplit(" -o ")[0].strip()).name for part in parts) == [
        "card_operators.cpp",
        "card_structured.cpp",
        "simulated_card.cpp",
    ]
    assert all(part.startswith("-fast -O1 -std=c++20 ") for part in parts)
    names = {Path(word).name for word in last.split() if word.endswith(".o")}
    assert names == {"card_operators.o", "card_structured.o", "simulated_card.o"}
    assert " -shared " in last
    assert sorted(file.name for file in cache.iterdir()) == [f"{path.name}{end}" for end in ("", ".lock", ".sha256")]


def test_starting_together_compiles_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f'echo run >> {tmp_path}/log; sleep 0.3; echo library > "$out"'
    use_compiler(monkeypatch, fake_compiler(tmp_path, body))
    threads = [Thread(target=compiled) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "log").read_text() == "run\n"


@pytest.mark.slow
@pytest.mark.subprocess
def test_processes_that_start_together_compile_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f'echo run >> {tmp_path}/log; sleep 1; echo library > "$out"'
    use_compiler(monkeypatch, fake_compiler(tmp_path, body))
    code = "from cudamem_testing.recorders.build import compiled; print(compiled())"
    command = [forked.python(), "-c", code]  # they start within a tenth of a second
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=120)[0] for process in running}
    assert len(paths) == 1
    assert (tmp_path / "log").read_text() == "run\n"


def test_failed_compilation_shows_errors_and_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = 'echo half > "$out"; for i in $(seq 1 30); do echo "error $i: no such thing" >&2; done; exit 3'
    script = fake_compiler(tmp_path, body)
    use_compiler(monkeypatch, script)
    with pytest.raises(RecorderUnavailable) as raised:
        compiled()
    lines = str(raised.value).splitlines()
    assert lines[0] == (
        "the C++ compiler failed (status 3); torch's headers need C++17 or C++20, and a recent compiler: "
        "install one, or set CXX to it"
    )
    assert lines[1].startswith(f"  '{script}' -fast -O2 ")
    assert lines[2:] == [f"  error {i}: no such thing" for i in range(1, 13)]
    assert [file.suffix for file in cache.iterdir()] == [".lock"]


def test_no_compiler_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(RecorderUnavailable) as raised:
        find_compiler({"PATH": str(tmp_path)})
    assert str(raised.value) == (
        "no C++ compiler found (looked for c++, g++, clang++); install one, such as the package g++ or clang, "
        "or set CXX to it"
    )
    with pytest.raises(RecorderUnavailable, match=r"looked for \$CXX \(icpx\)"):
        find_compiler({"PATH": str(tmp_path), "CXX": "icpx -v"})


def test_no_compiler_announces_no_compilation(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    said: list[str] = []
    with pytest.raises(RecorderUnavailable, match="no C"):
        compiled(said.append)
    assert said == []


def test_compiler_is_the_chosen_one_or_the_first_there_is(tmp_path: Path) -> None:
    for name in ("g++", "clang++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    path = str(tmp_path)
    assert find_compiler({"PATH": path}) == ["g++"]
    assert find_compiler({"PATH": path, "CXX": "clang++ -v"}) == ["clang++", "-v"]


def test_an_existing_library_is_found_without_compiling(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("cudamem_testing.recorders.cache._TEMPORARY", ())
    use_compiler(monkeypatch, fake_compiler(tmp_path, 'echo library > "$out"'))
    before = sorted(tmp_path.iterdir())
    assert compiled_before() is None
    assert sorted(tmp_path.iterdir()) == before
    path = compiled()
    assert compiled_before() == path
    path.unlink()
    assert compiled_before() is None
    monkeypatch.setenv("CUDAMEM_CACHE", str(tmp_path / "fake c++" / "below"))
    private = compiled()
    assert private.parent == tmp_path / f"cudamem_testing-{os.getuid()}"
    assert compiled_before() == private
    private.parent.chmod(0o777)  # others could have put it there
    assert compiled_before() is None
    monkeypatch.setattr("sys.platform", "win32")
    assert compiled_before() is None
    assert obstacle(CPU_RECORDER) == "the CPU recorder runs on Linux and macOS, not on win32"


def test_an_obstacle_is_known_without_compiling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert obstacle(CPU_RECORDER) is None
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert obstacle(CPU_RECORDER) is None  # it was compiled before
    monkeypatch.setenv("CUDAMEM_CACHE", str(tmp_path))
    assert (obstacle(CPU_RECORDER) or "").startswith("no C++ compiler found (looked for $CXX (no-such-compiler))")


DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:3]),
    "another library": lambda path: path.write_text("another"),
    "empty": lambda path: path.write_text(""),
    "a link to another": lambda path: (path.rename(path.with_name("other")), path.symlink_to("other")),
    "writable for others": lambda path: path.chmod(0o722),
    "without its checksum": lambda path: path.with_name(f"{path.name}.sha256").unlink(),
    "with a checksum that is no text": lambda path: path.with_name(f"{path.name}.sha256").write_bytes(b"\xff"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_library_that_is_not_whole_is_compiled_again(
    damage: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, fake_compiler(tmp_path, f'echo run >> {tmp_path}/log; echo library > "$out"'))
    path = compiled()
    DAMAGE[damage](path)
    assert compiled_before() is None
    assert compiled() == path
    assert (path.read_text(), stat.S_IMODE(path.lstat().st_mode)) == ("library\n", 0o700)
    assert compiled() == compiled_before() == path
    assert (tmp_path / "log").read_text() == "run\n" * 2


def test_a_library_of_another_user_is_compiled_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, fake_compiler(tmp_path, f'echo run >> {tmp_path}/log; echo library > "$out"'))
    path = compiled()
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, -1)
    assert compiled_before() is None
    assert compiled() == path
    assert path.stat().st_uid == 0


def test_a_lock_that_cannot_be_opened_is_left_out(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(monkeypatch, fake_compiler(tmp_path, 'echo library > "$out"'))
    (cache / f"{build._name(CPU_RECORDER)}.lock").mkdir(parents=True)
    assert compiled().read_text() == "library\n"


def test_a_folder_with_the_librarys_name_uses_the_next_place(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("cudamem_testing.recorders.cache._TEMPORARY", ())
    use_compiler(monkeypatch, fake_compiler(tmp_path, 'echo library > "$out"'))
    name = build._name(CPU_RECORDER)
    (cache / name).mkdir(parents=True)
    said: list[str] = []
    private = tmp_path / f"cudamem_testing-{os.getuid()}"
    assert compiled(said.append) == private / name
    why = f"kept in {private}: {cache}: {name} is a folder"
    assert said == [f"compiling the CPU recorder for torch {torch.__version__} (once, a few seconds, {why})"]


def test_without_any_folder_it_is_unavailable_with_every_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("CUDAMEM_CACHE", str(file / "below"))
    monkeypatch.setattr(caching, "_temporary", lambda: [file])
    monkeypatch.setattr(caching, "_new", lambda process: None)
    with pytest.raises(RecorderUnavailable) as raised:
        compiled()
    private = file / f"cudamem_testing-{os.getuid()}"
    why = f"{file / 'below'}: Not a directory; {private}: Not a directory"
    assert str(raised.value) == (
        f"there is no folder to keep the CPU recorder in ({why}); set CUDAMEM_CACHE to a folder that only you can write"
    )
    with pytest.raises(RecorderUnavailable, match="there is no folder to keep the CPU recorder in"):
        build.cache_folder(os.environ)


def test_cxx_that_is_not_a_command_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecorderUnavailable) as raised:
        find_compiler({"CXX": 'g++ "'})
    assert str(raised.value) == '$CXX is not a command (No closing quotation): g++ "'


def test_a_library_that_does_not_load_is_compiled_once_more(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = fake_compiler(tmp_path, f'echo run >> {tmp_path}/log; echo library > "$out"')
    use_compiler(monkeypatch, script)
    with pytest.raises(RecorderUnavailable) as raised:
        build.load(CPU_RECORDER)
    lines = str(raised.value).splitlines()
    assert lines[0].startswith(f"the CPU recorder compiles but does not load: {compiled()}: ")
    assert lines[1].startswith(f"  '{script}' -fast -O2 ")
    assert (tmp_path / "log").read_text() == "run\n" * 2


def test_other_systems_and_missing_headers_are_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("torch.__file__", str(tmp_path / "torch" / "__init__.py"))
        with pytest.raises(RecorderUnavailable) as raised:
            compiled()
    include = tmp_path / "torch" / "include" / "c10"
    assert str(raised.value) == (f"this torch has no C++ headers ({include}); install torch from a wheel that has them")
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(RecorderUnavailable, match="runs on Linux and macOS, not on win32"):
        compiled()
