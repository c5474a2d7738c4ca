"""``python -m suites.readme [NAME ...]``: what runs print in README.md and on the page of the tour.

Each sample is the code block below a line ``<!-- generated: NAME -->``. ``tour`` runs the tour, which takes minutes;
the others take seconds each.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from suites import forked

ROOT = Path(__file__).parents[1]
README, TOUR = ROOT / "README.md", ROOT / "docs" / "guide" / "tour.md"
ATTENTION = {
    "attention.py": """\
import torch


def attend(q, k, v):
    scores = q @ k.transpose(-1, -2)
    return torch.softmax(scores, -1) @ v
""",
    "test_attention.py": """\
import pytest
import torch
from attention import attend


@pytest.fixture
def qkv():
    return torch.rand(3, 4, 1024, 64)


# over: the weights are as large as the scores
@pytest.mark.memory_budget(peak="24MiB")
def test_attend(qkv):
    attend(*qkv)


def test_small():
    attend(*torch.rand(3, 1, 64, 64))
""",
}
LEAK = {
    "test_leak.py": """\
import torch
CACHE = {}
def remember(name): CACHE.setdefault(name, []).append(torch.zeros(1024, 1024))
def test_decoder(): remember("layer0")
"""
}
_BLOCK = r"(<!-- generated: {name} -->\n```\n)(.*?)(```)"


def attention() -> str:
    """A test over its budget, and the summary."""
    lines = _run(ATTENTION)
    return _between(lines, "= FAILURES", "measured ")


def leak() -> str:
    """The finding of a leak."""
    lines = _run(LEAK)
    return _between(lines, "cudamem: 4.0 MiB", "   more: ")


def tour() -> str:
    """The summary of the tour."""
    command = [forked.python(compiler=True), "-m", "pytest", "suites/tour", "--cudamem", "-p", "no:randomly"]
    command += ["-p", "suites.heap", "--cudamem-device=cpu"]
    lines = _output(command, ROOT)
    text = _between(lines, "= cudamem summary", "measured ")
    return text + "".join(f"{line}\n" for line in lines if line.startswith("NOT CHECKED"))


SAMPLES: Mapping[str, Callable[[], str]] = {"attention": attention, "leak": leak, "tour": tour}


def file_of(name: str) -> Path:
    """The file that shows a sample."""
    return TOUR if name == "tour" else README


def written(name: str) -> str:
    """A sample as its file has it.

    Raises:
        ValueError: when it has none of that name.
    """
    found = re.search(_BLOCK.format(name=name), file_of(name).read_text(encoding="utf-8"), re.S)
    if found is None:
        raise ValueError(f"{file_of(name).name} has no sample {name}")
    return found[2]


def _run(files: Mapping[str, str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        command = [forked.python(), "-m", "pytest", "-p", "cudamem", "-p", "no:cacheprovider", "--cudamem"]
        return _output([*command, "--cudamem-device=cpu"], Path(folder), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def _output(command: list[str], folder: Path, **more: str) -> list[str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "COLUMNS": "80", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}
    for name in ("CI", "PYTEST_ADDOPTS", "FORCE_COLOR", "PY_COLORS"):
        environ.pop(name, None)
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    return [line.rstrip() for line in done.stdout.splitlines()]


def _between(lines: list[str], first: str, last: str) -> str:
    """From the first line with a text to the next one that begins with another."""
    start = next(place for place, line in enumerate(lines) if first in line)
    end = next(place for place, line in enumerate(lines) if place >= start and line.startswith(last))
    return "".join(f"{line}\n" for line in lines[start : end + 1])


def main() -> int:
    """Rewrite the samples that are named, or all."""
    for name in sys.argv[1:] or SAMPLES:
        file, before, sample = file_of(name), written(name), SAMPLES[name]()
        file.write_text(file.read_text(encoding="utf-8").replace(before, sample), encoding="utf-8")
        print(f"{file.name}: sample {name} of {len(sample.splitlines())} lines")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
