"""What ``doctor --fix`` does: compiles the native parts again, and removes what killed processes left.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cudamem_testing import torch_api
from cudamem_testing.model.sizes import count
from cudamem_testing.recorders import build, cache
from cudamem_testing.show.atomic_files import is_forsaken, shown
from cudamem_testing.show.printable import one_line, short_lines
from cudamem_testing.simulated import native as simulated
from cudamem_testing.snapshots import native as snapshots
from cudamem_testing.snapshots.whatif import model

#: What every run needs, and what only some do: that is compiled again where it was compiled before.
ALWAYS = (build.CPU_RECORDER, build.COLLECTOR_WATCH)
OPTIONAL = (build.CARD_RECORDER, simulated.LIBRARY, simulated.ENGINE, snapshots.LIBRARY, model.LIBRARY)
#: Folders below a project that are not its own: they are not searched.
_OTHERS = frozenset({"node_modules", "site-packages", "__pycache__"})


class Repaired(NamedTuple):
    """Lines on what was fixed, and on what could not be."""

    done: tuple[str, ...]
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"fixed: {line}" for line in self.done] + [f"not fixed: {line}" for line in self.failed]
        return short_lines("\n".join(map(one_line, lines)) or "nothing to fix")


def repair(root: Path, progress: Callable[[str], None] | None = None) -> Repaired:
    """Fix what can be fixed without a question; no recorded file, setting or test is changed.

    Args:
        root: the project: temporary files that are an hour old and end in ``.cudamem.tmp`` are removed below it.
        progress: called with a line before something that takes seconds.
    """
    done, failed = [], []
    if torch_api.version() is not None:
        torch_api.load()  # the libraries are compiled against it
        needed = {*ALWAYS, *((build.CARD_RECORDER,) if torch_api.cuda_device_count() else ())}
        for library in (*ALWAYS, *OPTIONAL):
            if library not in needed and build.compiled_before(library) is None:
                continue
            try:
                done.append(_compiled_again(library, progress))
            except build.RecorderUnavailable as error:
                failed.append(f"{library.title}: {error}")
    for places, where in ((_in_cache(), "compiler"), (_below(root), "process")):
        removed, left = _removed(places)
        if removed:
            done.append(f"removed {count(len(removed), 'file')} of a killed {where}: {', '.join(map(shown, removed))}")
        failed += [f"{shown(path)}: {reason}" for path, reason in left]
    return Repaired(tuple(done), tuple(failed))


def _compiled_again(library: build.Library, progress: Callable[[str], None] | None) -> str:
    before = build.compiled_before(library)
    if before is not None:
        cache.forget(before)
    path = build.compiled(progress, library)
    return f"{library.title} was compiled{' again' if before is not None else ''}: {path}"


def _in_cache() -> Iterator[Path]:
    """What compilers left in the folders of compiled libraries."""
    for folder in cache.places(os.environ):
        with suppress(cache.Refused, OSError):
            yield from (one for one in sorted(cache.checked(folder).glob("*.tmp")) if is_forsaken(one))


def _below(root: Path) -> Iterator[Path]:
    """What processes left in the folders of a project."""
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name not in _OTHERS)
        yield from (one for one in map(Path(folder).joinpath, sorted(files)) if is_forsaken(one, named=True))


def _removed(places: Iterator[Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    removed, left = [], []
    for path in places:
        try:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            left.append((path, error.strerror or str(error)))
        else:
            removed.append(path)
    return removed, left
