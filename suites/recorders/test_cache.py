"""Where compiled libraries are kept: in a folder that this user alone can write, or else in a new one."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cudamem_testing.recorders import cache
from cudamem_testing.recorders.build import cache_folder, compiled

OTHER = 65534  # the number of a user without rights


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of temporary files, as others see it who may add to it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(cache, "_TEMPORARY", ())
    return folder


@pytest.fixture
def private(temporary: Path) -> Path:
    """The folder of this user in it."""
    return temporary / f"cudamem_testing-{os.getuid()}"


def test_follows_the_environment(tmp_path: Path) -> None:
    named, xdg, home = tmp_path / "named", tmp_path / "xdg", tmp_path / "home"
    everything = {"CUDAMEM_CACHE": str(named), "XDG_CACHE_HOME": str(xdg), "HOME": str(home)}
    assert cache_folder(everything) == named
    everything["CUDAMEM_CACHE"] = ""  # no folder, as for the other two
    assert cache_folder(everything) == xdg / "cudamem_testing"
    del everything["CUDAMEM_CACHE"]
    assert cache_folder(everything) == xdg / "cudamem_testing"
    del everything["XDG_CACHE_HOME"]
    assert cache_folder(everything) == home / ".cache" / "cudamem_testing"
    assert all(folder.is_dir() for folder in (named, xdg / "cudamem_testing"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in (named, xdg / "cudamem_testing")} == {0o700}


def test_without_a_home_variable_it_is_that_of_the_user(
    tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_home", lambda: str(tmp_path / "home"))
    assert cache_folder({}) == tmp_path / "home" / ".cache" / "cudamem_testing"
    monkeypatch.setattr(cache, "_home", lambda: None)  # a number without a name, as containers have
    assert cache_folder({}) == private


def test_a_folder_that_cannot_be_made_uses_a_temporary_one(tmp_path: Path, private: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    environ = {"CUDAMEM_CACHE": str(file / "below")}
    assert cache_folder(environ) == private
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert cache_folder(environ) == private


def test_a_system_without_a_temporary_folder_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    first, *rest = cache.places({"CUDAMEM_CACHE": str(tmp_path)})
    assert first == tmp_path
    assert rest == [Path(folder) / f"cudamem_testing-{os.getuid()}" for folder in ("/tmp", "/var/tmp")]


def refused(folder: Path) -> str:
    with pytest.raises(cache.Refused) as raised:
        cache.checked(folder, make=True)
    return str(raised.value)


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    assert cache.checked(folder, make=True) == folder
    folder.chmod(0o707)
    assert refused(folder) == f"other users can write to {folder}"
    folder.chmod(0o1777)  # they cannot replace what is there, but add to it
    assert refused(folder) == f"other users can write to {folder}"


def test_a_folder_above_that_others_can_write_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "above"
    folder = above / "between" / "folder"
    assert cache.checked(folder, make=True) == folder
    above.chmod(0o777)
    assert refused(folder) == f"other users can write to {above}"
    above.chmod(0o1777)  # as that of temporary files: they cannot move what is ours
    assert cache.checked(folder) == folder


def test_the_group_of_one_user_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o770)
    monkeypatch.setattr(cache, "_is_private", lambda group: group == folder.stat().st_gid)
    assert cache.checked(folder) == folder
    monkeypatch.setattr(cache, "_is_private", lambda group: False)
    assert refused(folder) == f"other users can write to {folder}"


def test_a_group_is_private_by_its_name_and_members(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    user = pwd.getpwuid(os.getuid())
    cases = {
        (user.pw_gid, user.pw_name, ()): True,
        (user.pw_gid, user.pw_name, (user.pw_name,)): True,
        (user.pw_gid, user.pw_name, (user.pw_name, "other")): False,
        (user.pw_gid, "users", ()): False,
        (user.pw_gid + 1, user.pw_name, ()): False,
    }
    for (number, name, members), expected in cases.items():
        group = grp.struct_group((name, "x", number, list(members)))
        monkeypatch.setattr(grp, "getgrgid", lambda _, group=group: group)
        assert cache._is_private.__wrapped__(number) is expected


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "above"
    folder = above / "folder"
    cache.checked(folder, make=True)
    os.chown(folder, OTHER, -1)
    assert refused(folder) == f"{folder} belongs to another user"
    os.chown(folder, 0, -1)
    assert cache.checked(folder) == folder
    os.chown(above, OTHER, -1)
    assert refused(folder) == f"{above} belongs to another user"


def test_the_target_of_a_link_is_checked(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir(mode=0o700)
    link.symlink_to(folder)
    assert cache.checked(link) == folder
    folder.chmod(0o777)
    assert refused(link) == f"other users can write to {folder}"


@pytest.mark.parametrize("trap", ["writable for others", "a link"])
def test_a_temporary_folder_that_others_could_fill_is_not_used(trap: str, tmp_path: Path, private: Path) -> None:
    if trap == "a link":
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir(mode=0o700)
        private.symlink_to(elsewhere)
    else:
        private.mkdir()
        private.chmod(0o777)
    file = tmp_path / "file"
    file.write_text("")
    cache._new.cache_clear()
    environ = {"CUDAMEM_CACHE": str(file / "below")}
    chosen = cache_folder(environ)
    assert chosen != private
    assert chosen.parent == private.parent
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o700
    assert cache_folder(environ) == chosen  # one for the process
    cache._remove(chosen, os.getpid() + 1)  # as a forked child does
    assert chosen.is_dir()
    cache._remove(chosen, os.getpid())
    assert not chosen.exists()
    cache._new.cache_clear()


FIRST = "import os; from cudamem_testing.recorders.build import cache_folder; print(cache_folder(os.environ))"


@pytest.mark.subprocess
@pytest.mark.parametrize("owner", ["another user", "this user"])
def test_a_folder_that_others_prepared_is_not_used(owner: str, tmp_path: Path) -> None:
    """Without a home in the environment, and with all of the folder of temporary files open to others."""
    if owner == "another user" and os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    prepared = tmp_path / ".cache" / "cudamem_testing"
    prepared.mkdir(parents=True)
    for path in (prepared, prepared.parent, tmp_path):
        path.chmod(0o777)
        if owner == "another user":
            os.chown(path, OTHER, -1)
    gone = ("HOME", "XDG_CACHE_HOME", "CUDAMEM_CACHE")
    environ = {name: value for name, value in os.environ.items() if name not in gone} | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", FIRST]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).is_relative_to(tmp_path)


FAULTS = """
import os, sys, warnings
import _ctypes, torch
from cudamem_testing.recorders.choose import Recorders

folder, library = sys.argv[1:]
path = os.path.join(folder, library)
with open(path, "rb") as file:
    whole = file.read()
with open(_ctypes.__file__, "rb") as file:
    another = file.read()

def opened(content):
    with open(path, "wb") as file:
        file.write(content)
    recorders = Recorders("cpu")
    (recorder,) = recorders.open()
    print(type(recorder).__name__, *recorders.notes)
    recorders.close()

os.environ["CXX"] = "no-such-compiler"
opened(whole[:20_000])
opened(another)
os.environ["CXX"] = 'g++ "'
opened(b"")
opened(whole)
"""


@pytest.mark.parametrize("kind", ["pipe", "link", "held"])
def test_nothing_waits_for_a_lock_for_ever(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, other = tmp_path / "a.lock", tmp_path / "other"
    other.write_text("kept")
    monkeypatch.setattr(cache, "MOST_WAITED", 0.1)
    with ExitStack() as stack:
        if kind == "pipe":
            os.mkfifo(lock)
        elif kind == "link":
            lock.symlink_to(other)
        else:  # a process that was stopped while it compiled
            fcntl.flock(stack.enter_context(lock.open("w")), fcntl.LOCK_EX)
        start = time.monotonic()
        with cache.alone(lock):
            assert time.monotonic() - start < 5
    assert other.read_text() == "kept"
    with cache.alone(tmp_path / "b.lock"), (tmp_path / "b.lock").open() as same, pytest.raises(BlockingIOError):
        fcntl.flock(same, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_checksum_that_is_no_file_is_not_read(tmp_path: Path) -> None:
    library, beside = tmp_path / "a.so", tmp_path / "a.so.sha256"
    library.write_text("code")
    library.chmod(0o700)
    beside.write_text(hashlib.sha256(b"code").hexdigest())
    assert cache.is_whole(library)
    beside.unlink()
    os.mkfifo(beside)
    assert not cache.is_whole(library)
    beside.unlink()
    beside.symlink_to("/dev/zero")
    assert not cache.is_whole(library)


@pytest.mark.subprocess
@pytest.mark.slow
def test_faults_of_cache_and_compiler_are_notes(tmp_path: Path) -> None:
    library = compiled()
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    for file in (library, library.with_name(f"{library.name}.sha256")):
        shutil.copy(file, folder)
    (folder / f"{library.name}.lock").mkdir()
    command = [sys.executable, "-c", FAULTS, str(folder), library.name]
    environ = {**os.environ, "CUDAMEM_CACHE": str(folder)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    missing = "no C++ compiler found (looked for $CXX (no-such-compiler)); "
    missing += "install one, such as the package g++ or clang, or set CXX to it"
    only = "on cpu only tests with a limit or a window are measured, and incompletely"
    assert done.stdout.splitlines() == [
        f"ProfilerRecorder {missing}; {only}",
        f"ProfilerRecorder {missing}; {only}",
        f'ProfilerRecorder $CXX is not a command (No closing quotation): g++ "; {only}',
        "CpuRecorder",
    ]
