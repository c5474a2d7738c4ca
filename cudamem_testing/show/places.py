"""Where a project keeps recorded files, and what is there. Every start of pytest imports it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "__cudamem__"
"""Beside each test module, and at rootdir."""
KNOWN = f"{FOLDER}/known.jsonl"
"""Below rootdir, by default."""


def side_folder(module: Path) -> Path:
    """The folder for expected texts of calls without an argument, of the test module at `module`."""
    return module.parent / FOLDER / module.stem


def baseline_file(root: Path, nodeid: str) -> Path:
    """The file with the baselines of a test, by its id relative to `root`."""
    module = root / nodeid.partition("::")[0]
    return module.parent / FOLDER / f"{module.name.removesuffix('.py')}.json"


def content_of(path: Path) -> bytes | None:
    """The content of a file; `None` if there is none.

    Raises:
        OSError: that cannot be told. `Path.exists` says no file from Python 3.14 on, and the file may be overwritten.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def mode_of(path: Path) -> int:
    """The type and the permissions of a file, as in `os.stat_result`; 0 if there is none.

    Raises:
        OSError: that cannot be told, for example of a name that is too long.
    """
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def name_of(path: Path, root: Path) -> str:
    """The path for messages, the same in every process: relative to rootdir if it is below it."""
    text = os.path.relpath(path, root) if path.is_relative_to(root) else str(path)
    return text.replace("\\", "/")
