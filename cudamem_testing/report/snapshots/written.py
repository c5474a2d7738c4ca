"""Files of flame graphs, by their ending. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import json
from pathlib import Path

import cudamem_testing
from cudamem_testing.model.flames import calls_of
from cudamem_testing.report.snapshots.looked import Looked
from cudamem_testing.show.atomic_files import replace_file
from cudamem_testing.show.plots import flame as drawing
from cudamem_testing.show.plots.style import save
from cudamem_testing.snapshots.flames import Flame

FOLDED = (".folded", ".txt")


def write_flame(looked: Looked, path: Path) -> None:
    """Write the flame graph of one file as folded stacks, as speedscope's JSON or as a picture, whole or not at all.

    Raises:
        ValueError: another ending, or events are needed and none were recorded.
        ModuleNotFoundError: a picture, and matplotlib is not installed (extra ``plot``).
        OSError: it cannot be written; an older file is untouched.
    """
    flame = looked.flame(looked.of)
    if path.suffix in FOLDED:
        replace_file(path, (f"{line}\n".encode() for line in flame.folded()))
    elif path.suffix == ".json":
        replace_file(path, json.dumps(flame.speedscope(cudamem_testing.__version__)).encode())
    elif path.suffix in (".svg", ".png"):
        _draw(flame, path)
    else:
        raise ValueError(f"{path.name}: write .folded, .txt, .json (speedscope), .html, .svg or .png")


def _draw(flame: Flame, path: Path) -> None:
    stacks = tuple((calls_of(part.stack, part.label), part.bytes) for part in flame.parts)
    save(drawing.draw(drawing.Flame(flame.title, stacks)), path)
