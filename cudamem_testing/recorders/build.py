"""Compiles the native libraries on first use and keeps the results.

Nearly all are C++ code against torch's own headers, so they cannot be shipped compiled: torch has no stable interface
for allocators. The CPU recorder and the garbage-collector watch only need c10 and take two to three seconds to compile,
the recorder of cards about ten. Compiled libraries are kept (cache.py) for later runs, named by the version of torch
and a hash of everything they depend on; one that needs nothing of torch is compiled and loaded without importing it.
They do not use Python's headers, so every Python with the same torch shares them. Processes that start together
(pytest-xdist) compile once: the others wait.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cudamem_testing.recorders import cache
from cudamem_testing.torch_api.headers import cxx_standard
from cudamem_testing.torch_api.process import torch


class Library(NamedTuple):
    """A library to compile: the first of the sources, and each other one that is no header, side by side.

    ``time`` is how long that takes, in words; ``level`` the compiler's effort; ``standard`` the oldest C++ standard
    that it is written for: a newer one is used where torch's headers need it. ``of_torch`` is whether it includes them.
    """

    name: str
    title: str
    sources: tuple[str, ...]
    standard: str
    linked: tuple[str, ...]
    folder: Path = Path(__file__).parent
    time: str = "a few seconds"
    level: str = "-O2"
    of_torch: bool = True

    @property
    def units(self) -> list[Path]:
        """What is compiled; the other sources are included by these."""
        return [self.folder / name for name in self.sources if name.endswith(".cpp")]


CPU_RECORDER = Library(
    "cpu_recorder",
    "the CPU recorder",
    (
        "cpu_recorder.cpp",
        "boundaries.h",
        "codes.h",
        "cpu_functions.h",
        "cpu_ledger.h",
        "cpu_mutex.h",
        "cpu_stacks.h",
        "device_counters.h",
        "device_functions.h",
        "journal.h",
        "journal_calls.h",
        "python_functions.h",
        "source.h",
        "trap.h",
    ),
    "c++17",
    ("c10",),
)
CARD_RECORDER = Library(
    "card_recorder",
    "the recorder of cards",
    (
        "card_recorder.cpp",
        "card_stacks.h",
        "codes.h",
        "cpu_mutex.h",
        "cpu_stacks.h",
        "host_counters.h",
        "python_functions.h",
        "source.h",
    ),
    "c++20",
    ("c10", "torch_cpu"),
)
_PARTS = ("blocks", "counts", "garbage", "graph", "mark", "meter", "others", "python", "reading", "storages", "time")
COLLECTOR_WATCH = Library(
    "collector_watch",
    "the watch over the garbage collector",
    (
        "collector_watch.cpp",
        *(f"collector_{part}.h" for part in _PARTS),
        "cpu_ledger.h",
        "device_counters.h",
        "python_functions.h",
    ),
    "c++17",
    ("c10",),
)
_PLATFORMS = ("linux", "darwin")
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_S = 600
_LINES_OF_ERROR = 12


class RecorderUnavailable(RuntimeError):  # noqa: N818 - an outcome to fall back from, not a programming error
    """A native library is not available here; the message says why and what to do."""


def compiled(progress: Callable[[str], None] | None = None, library: Library = CPU_RECORDER) -> Path:
    """Path of the compiled library for the torch in use; compiles it if it is missing or damaged.

    Args:
        progress: called with one line before a compilation starts, because it takes seconds.
        library: which one.

    Raises:
        RecorderUnavailable: no compiler, no headers, the compilation failed, or there is no folder to keep it in.
    """
    if sys.platform not in _PLATFORMS:
        raise RecorderUnavailable(_elsewhere(library))
    name = _name(library)
    faults: list[str] = []
    for folder in cache.usable(os.environ, faults):
        try:
            return _kept(folder / name, library, progress, faults)
        except OSError as error:
            faults.append(f"{folder}: {error.strerror}")
    raise _homeless(library, faults)


def _kept(target: Path, library: Library, progress: Callable[[str], None] | None, faults: Sequence[str]) -> Path:
    """`target`, compiled if necessary. `faults` say why better folders were not used.

    Raises:
        OSError: the library cannot be kept there.
    """
    if cache.is_whole(target):
        return target
    if target.is_dir():  # a file cannot replace it
        raise IsADirectoryError(errno.EISDIR, f"{target.name} is a folder")
    with cache.alone(target.with_name(f"{target.name}.lock")):
        if not cache.is_whole(target):  # another process may have been first
            find_compiler(os.environ)  # do not announce a compilation that cannot start
            if progress is not None:
                where = f", kept in {target.parent}: {faults[0]}" if faults else ""
                what = f"{library.title} for torch {torch.__version__}" if library.of_torch else library.title
                progress(f"compiling {what} (once, {library.time}{where})")
            compile_library(library, target)
    return target


def compiled_before(library: Library = CPU_RECORDER) -> Path | None:
    """Path of the compiled library for the torch in use, if it exists; compiles nothing and creates no folder."""
    if sys.platform not in _PLATFORMS:
        return None
    name = _name(library)
    for folder in cache.places(os.environ):
        with suppress(cache.Refused):
            target = cache.checked(folder) / name
            return target if cache.is_whole(target) else None
    return None


def obstacle(library: Library) -> str | None:
    """Why the library cannot be compiled here, as far as that is known without trying; ``None`` if it was compiled."""
    if sys.platform not in _PLATFORMS:
        return _elsewhere(library)
    if compiled_before(library) is None:
        try:
            find_compiler(os.environ)
        except RecorderUnavailable as reason:
            return str(reason)
    return None


def _elsewhere(library: Library) -> str:
    return f"{library.title} runs on Linux and macOS, not on {sys.platform}"


def load(library: Library) -> ctypes.PyDLL:
    """Load the compiled library into this process; its calls keep the GIL.

    A library that was compiled earlier and does not load, for example after a system update, is compiled again.

    Raises:
        RecorderUnavailable: it cannot be compiled, or does not load.
    """
    path = compiled(library=library)
    try:
        return ctypes.PyDLL(str(path))
    except OSError:
        cache.forget(path)
    path = compiled(library=library)
    try:
        return ctypes.PyDLL(str(path))
    except OSError as error:
        command = shlex.join([*find_compiler(os.environ), *_arguments(library, library.units)])
        raise RecorderUnavailable(f"{library.title} compiles but does not load: {error}\n  {command}") from error


def compile_library(library: Library, target: Path) -> None:
    """Compile a library, which appears at `target` atomically. Files are compiled side by side, in their order.

    Raises:
        RecorderUnavailable: no compiler, no headers, or the compiler failed; with its first lines.
        OSError: the library cannot be written there.
    """
    if library.of_torch and not (_torch() / "include" / "c10" / "core" / "CPUAllocator.h").exists():
        raise RecorderUnavailable(
            f"this torch has no C++ headers ({_torch() / 'include' / 'c10'}); install torch from a wheel that has them"
        )
    compiler, sources = find_compiler(os.environ), library.units
    with tempfile.TemporaryDirectory(prefix=f"{target.stem}-", suffix=".tmp", dir=target.parent) as folder:
        scratch, parts = Path(folder, "library.so"), sources
        if len(sources) > 1:
            parts = [Path(folder, f"{source.stem}.o") for source in sources]
            commands = [
                [*compiler, *_flags(library), *_including(library), "-c", str(source), "-o", str(part)]
                for source, part in zip(sources, parts, strict=True)
            ]
            # As many at a time as there are cores, so that the first ones, which take longest, share none.
            with ThreadPoolExecutor(min(len(commands), os.cpu_count() or 1)) as threads:
                list(threads.map(_run_compiler, commands))
        _run_compiler([*compiler, *_arguments(library, parts), "-o", str(scratch)])
        cache.keep(scratch, target)


def find_compiler(environ: Mapping[str, str]) -> list[str]:
    """The C++ compiler as the start of a command line: `$CXX` (which may have arguments), else the first one found.

    Raises:
        RecorderUnavailable: there is none, or `$CXX` is not a command line.
    """
    try:
        chosen = shlex.split(environ.get("CXX", ""))
    except ValueError as error:
        raise RecorderUnavailable(f"$CXX is not a command ({error}): {environ['CXX']}") from error
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        if shutil.which(command[0], path=environ.get("PATH")):
            return command
    looked_for = f"$CXX ({chosen[0]})" if chosen else ", ".join(_COMPILERS)
    raise RecorderUnavailable(
        f"no C++ compiler found (looked for {looked_for}); install one, such as the package g++ or clang, "
        "or set CXX to it"
    )


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The folder for compiled libraries, created if necessary.

    Raises:
        RecorderUnavailable: there is none that only this user can write.
    """
    faults: list[str] = []
    for folder in cache.usable(environ, faults):
        return folder
    raise _homeless(CPU_RECORDER, faults)


def _homeless(library: Library, faults: Sequence[str]) -> RecorderUnavailable:
    return RecorderUnavailable(
        f"there is no folder to keep {library.title} in ({'; '.join(faults)}); set CUDAMEM_CACHE to a folder that only "
        "you can write"
    )


def _name(library: Library) -> str:
    version = f"{torch.__version__}-" if library.of_torch else ""
    return f"{library.name}-{version}{_fingerprint(library, library.folder)}.so"


def _fingerprint(library: Library, folder: Path) -> str:
    """Hash of everything the compiled library depends on except torch's version, which is in its name."""
    digest = hashlib.sha256()
    for name in library.sources:
        digest.update((folder / name).read_bytes())
    digest.update(repr((_flags(library), library.linked, sys.platform, platform.machine())).encode())
    return digest.hexdigest()[:16]


def _torch() -> Path:
    return Path(torch.__file__).parent


def _arguments(library: Library, parts: Sequence[Path]) -> list[str]:
    """The compiler's arguments for a whole library of these files, without the output file."""
    return [
        *(*_flags(library), "-shared"),
        *(*_including(library), *map(str, parts)),
        *(("-L", str(_torch() / "lib"), *(f"-l{name}" for name in library.linked)) if library.linked else ()),
        *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()),  # Python's own functions
    ]


def _including(library: Library) -> list[str]:
    return ["-isystem", str(_torch() / "include")] if library.of_torch else []


def _flags(library: Library) -> list[str]:
    standard = max(library.standard, cxx_standard()) if library.of_torch else library.standard
    flags = [library.level, f"-std={standard}", "-fPIC", "-fvisibility=hidden", "-pthread"]
    if library.of_torch:
        flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    return flags


def _run_compiler(command: list[str]) -> None:
    shown = shlex.join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
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
