"""Where a project keeps recorded files. Every start of pytest imports it. PYTEST_DONT_REWRITE"""

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


def name_of(path: Path, root: Path) -> str:
    """The path for messages, the same in every process: relative to rootdir if it is below it."""
    text = os.path.relpath(path, root) if path.is_relative_to(root) else str(path)
    return text.replace("\\", "/")
