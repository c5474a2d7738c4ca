"""Runs tests in a process of their own, with another Python or on a card, where a session of this process cannot."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_apart(python: str, folder: Path, files: Mapping[str, str], *arguments: str, **variables: str) -> str:
    """What pytest prints for some files, all of whose tests pass. No plugin is loaded but those of the arguments."""
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
