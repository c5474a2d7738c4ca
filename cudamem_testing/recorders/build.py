"""Compiles the native libraries on first use and keeps the results.

They are C++ against torch's own headers, so they cannot be shipped compiled: torch gives no stable interface for
allocators. The CPU recorder needs c10 alone and takes two to three seconds to compile, the recorder of cards
some ten. What is compiled is kept for every later run, named by the version of torch and a hash of all that it
depends on. It knows nothing of Python's headers, so every Python with the same torch shares it. Processes that start
together (pytest-xdist) compile once: the others wait.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple


class Library(NamedTuple):
    """What is compiled: the first of the sources, which includes the others."""

    name: str
    title: str
    sources: tuple[str, ...]
    standard: str
    linked: tuple[str, ...]


CPU_RECORDER = Library(
    "cpu_recorder",
    "the CPU recorder",
    (
        "cpu_recorder.cpp",
        "codes.h",
        "cpu_ledger.h",
        "cpu_mutex.h",
        "cpu_stacks.h",
        "device_counters.h",
        "journal.h",
        "journal_calls.h",
    ),
    "c++17",
    ("c10",),
)
CARD_RECORDER = Library(
    "card_recorder",
    "the recorder of cards",
    ("card_recorder.cpp", "card_stacks.h", "codes.h", "cpu_mutex.h", "cpu_stacks.h", "host_counters.h"),
    "c++20",
    ("c10", "torch_cpu"),
)
_FOLDER = Path(__file__).parent
_PLATFORMS = ("linux", "darwin")
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_S = 600
_LINES_OF_ERROR = 12


class RecorderUnavailable(RuntimeError):  # noqa: N818 - an outcome to fall back from, not a programming error
    """A native library cannot be had here; the message says why and what to do."""


def compiled(progress: Callable[[str], None] | None = None, library: Library = CPU_RECORDER) -> Path:
    """Path of the compiled library for the torch in use, compiled now if it never was.

    Args:
        progress: told one line before a compilation starts, for it takes seconds.
        library: which one.

    Raises:
        RecorderUnavailable: no compiler, no headers, or the compilation failed.
    """
    import torch  # only where it is needed: a run without torch stays without it

    if sys.platform not in _PLATFORMS:
        raise RecorderUnavailable(f"{library.title} runs on Linux and macOS, not on {sys.platform}")
    name = _name(library)
    folder = cache_folder(os.environ)
    target = folder / name
    if target.exists():
        return target
    with _alone(folder / f"{name}.lock"):
        if not target.exists():  # another process may have been first
            find_compiler(os.environ)  # nothing is announced that cannot begin
            if progress is not None:
                progress(f"compiling {library.title} for torch {torch.__version__} (once, a few seconds)")
            compile_library(_FOLDER / library.sources[0], target, library.standard, library.linked)
    return target


def compiled_before(library: Library = CPU_RECORDER) -> Path | None:
    """Path of the compiled library for the torch in use if it is there; nothing is compiled, and no folder made."""
    if sys.platform not in _PLATFORMS:
        return None
    name = _name(library)
    for folder, private in _folders(os.environ):
        if folder.is_dir() and _is_ours(folder, private):
            return target if (target := folder / name).exists() else None
    return None


def load(path: Path, library: Library) -> ctypes.PyDLL:
    """A compiled library, in this process; its calls keep the GIL.

    Raises:
        RecorderUnavailable: it does not load.
    """
    try:
        return ctypes.PyDLL(str(path))
    except OSError as error:
        title = library.title.removeprefix("the ")
        raise RecorderUnavailable(f"the compiled {title} does not load ({error}); delete {path}") from error


def compile_library(source: Path, target: Path, standard: str = "c++17", linked: Sequence[str] = ("c10",)) -> None:
    """Compile one C++ file against torch into a shared library that appears at `target` whole or not at all.

    Raises:
        RecorderUnavailable: no compiler, no headers, or the compiler failed; with its first lines.
    """
    import torch

    root = Path(torch.__file__).parent
    if not (root / "include" / "c10" / "core" / "CPUAllocator.h").exists():
        raise RecorderUnavailable(
            f"this torch has no C++ headers ({root / 'include' / 'c10'}); install torch from a wheel that has them"
        )
    command = [*find_compiler(os.environ), *_flags(standard), "-isystem", str(root / "include"), str(source)]
    command += ["-L", str(root / "lib"), *(f"-l{name}" for name in linked)]
    handle, scratch = tempfile.mkstemp(prefix=target.stem, suffix=".tmp", dir=target.parent)
    os.close(handle)
    try:
        _run_compiler([*command, "-o", scratch])
        Path(scratch).replace(target)
    finally:
        Path(scratch).unlink(missing_ok=True)


def find_compiler(environ: Mapping[str, str]) -> list[str]:
    """The C++ compiler as the start of a command line: `$CXX` (which may have arguments), else the first found.

    Raises:
        RecorderUnavailable: there is none.
    """
    chosen = shlex.split(environ.get("CXX", ""))
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        if shutil.which(command[0], path=environ.get("PATH")):
            return command
    looked_for = f"$CXX ({chosen[0]})" if chosen else ", ".join(_COMPILERS)
    raise RecorderUnavailable(
        f"no C++ compiler found (looked for {looked_for}); install one, such as the package g++ or clang, "
        "or set CXX to it"
    )


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The folder for compiled libraries, made if need be: `$CUDAMEM_CACHE`, else below `$XDG_CACHE_HOME`, else
    below `~/.cache`; where that cannot be written, a private folder for temporary files.
    """
    for folder, private in _folders(environ):
        if _is_ours(folder, private):
            return folder
    return Path(tempfile.mkdtemp(prefix="cudamem_testing-"))


def _folders(environ: Mapping[str, str]) -> Iterator[tuple[Path, bool]]:
    """Where compiled libraries may be, the first choice first; and whether nobody else may write there."""
    if environ.get("CUDAMEM_CACHE"):
        yield Path(environ["CUDAMEM_CACHE"]), False
    elif environ.get("XDG_CACHE_HOME"):
        yield Path(environ["XDG_CACHE_HOME"]) / "cudamem_testing", False
    else:
        yield Path(environ.get("HOME") or tempfile.gettempdir()) / ".cache" / "cudamem_testing", False
    # A shared place: what others could have put there must not be loaded as code.
    yield Path(tempfile.gettempdir()) / f"cudamem_testing-{os.getuid()}", True


def _is_ours(folder: Path, private: bool) -> bool:
    """Whether the folder exists or could be made, and takes new files; `private`: and only from this user."""
    try:
        folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return False
    if private and (status.st_uid != os.getuid() or status.st_mode & 0o022 or folder.is_symlink()):
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _name(library: Library) -> str:
    import torch

    return f"{library.name}-{torch.__version__}-{_fingerprint(library, _FOLDER)}.so"


def _fingerprint(library: Library, folder: Path) -> str:
    """Hash of everything the compiled library depends on, but for torch's version, which its name shows."""
    digest = hashlib.sha256()
    for name in library.sources:
        digest.update((folder / name).read_bytes())
    digest.update(repr((_flags(library.standard), library.linked, sys.platform, platform.machine())).encode())
    return digest.hexdigest()[:16]


def _flags(standard: str) -> list[str]:
    import torch

    flags = ["-O2", f"-std={standard}", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
    flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    return flags


def _run_compiler(command: list[str]) -> None:
    shown = shlex.join(command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecorderUnavailable(f"the C++ compiler did not run: {error}\n  {shown}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        excerpt = "\n".join(f"  {line}" for line in lines[:_LINES_OF_ERROR])
        raise RecorderUnavailable(
            f"the C++ compiler failed (status {done.returncode}); torch's headers need C++17 or C++20, and a recent "
            f"compiler: install one, or set CXX to it\n  {shown}\n{excerpt}"
        )


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock between processes. Where the file system has none, compiling twice is harmless."""
    import fcntl  # not on Windows, where this module is only imported

    with lock.open("w") as handle:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
