"""``python -m suites.guide [PAGE ...]``: run the examples of the guide's pages, and write what they print into them.

A page is a script that a reader can follow from top to bottom, in an empty folder:

- A line that has only a name in backquotes, ``test_it.py``: the code block below it is what that file holds.
- A block of ``sh``: commands to run.
- ``<!-- prints -->``: the block below it is what the last command printed. ``<!-- prints; from cudamem:; to more: -->``
  shows a part: from the first line with a text to the next one that begins with another.

Commands run one after another in children of one process that has imported torch, so a page takes about a second.
``--check`` writes nothing, prints how pages differ from what was printed, and ends with status 1 if any does.
:mod:`suites.follow` runs the same commands as a reader does, and takes the time.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import re
import runpy
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from suites import forked
from suites.heap import set_aside

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: What differs between two runs of one command: how long it took, and lines that torch's profiler prints.
_DURATION = re.compile(r" in \d+\.\d(\ds| s\b)")
_NOISE = "USDT:"
_BLOCK = r"(?P<fence{n}>```+){language}\n(?P<{verb}>.*?)^(?P=fence{n})$"
_STEP = re.compile(
    "|".join(
        (
            r"^`(?P<file>[\w./]+)`\n\n" + _BLOCK.format(n=1, language=r"\w*", verb="text"),
            "^" + _BLOCK.format(n=2, language="sh", verb="commands"),
            r"^<!-- prints(?:; from (?P<first>[^;\n]+?))?(?:; to (?P<last>[^;\n]+?))? -->\n"
            + _BLOCK.format(n=3, language=r"\w*", verb="printed"),
        )
    ),
    re.M | re.S,
)


@dataclass(frozen=True)
class File:
    """A file that the reader writes."""

    name: str
    text: str


@dataclass(frozen=True)
class Commands:
    """Commands that the reader runs."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Printed:
    """A part of what the commands before printed: from a line with a text to one that begins with another."""

    first: str | None
    last: str | None
    text: str


Step = File | Commands | Printed


class Shell:
    """A folder in which commands run, each in a child of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []

    def do(self, step: Step) -> str | None:
        """Do what a step says; for a block that shows what was printed, the text that it must have.

        Raises:
            ValueError: when no line of the output has the text at which a part begins or ends.
        """
        if isinstance(step, Printed):
            return "".join(f"{line}\n" for line in part(self.lines, step))
        if isinstance(step, File):
            write(step, self.folder)
        else:
            self.lines = [line for command in step.lines for line in run(shlex.split(command), self.folder)]
        return None


def write(file: File, folder: Path) -> None:
    """Write a file of a page into a folder."""
    path = folder / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.text, encoding="utf-8")


def part(lines: Sequence[str], step: Printed) -> Sequence[str]:
    """The lines that a step shows."""
    if step.first is None and step.last is None:
        return [line for line in lines if line.strip()]
    found = (place for place, line in enumerate(lines) if step.first is None or step.first in line)
    start = next(found, None)
    if start is None:
        raise ValueError(f"no line has {step.first!r}:\n" + "\n".join(lines))
    ends = (at for at in range(start, len(lines)) if step.last is not None and lines[at].lstrip().startswith(step.last))
    end = next(ends, None)
    if end is None and step.last is not None:
        raise ValueError(f"no line after {step.first!r} begins with {step.last!r}:\n" + "\n".join(lines))
    return lines[start : None if end is None else end + 1]


def run(command: Sequence[str], folder: Path, color: bool = False) -> list[str]:
    """What a command prints in a folder, on both streams, with 80 columns."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(read)
        os.dup2(write, 1)
        os.dup2(write, 2)
        with contextlib.suppress(BaseException):  # a child must never return into the caller
            _become(command, folder, color)
        os._exit(1)
    os.close(write)
    with open(read, encoding="utf-8") as printed:
        lines = [_DURATION.sub(_half_a_second, line.rstrip()) for line in printed if not line.startswith(_NOISE)]
    os.waitpid(child, 0)
    return lines


def _half_a_second(duration: re.Match[str]) -> str:
    return f" in 0.5{' ' if ' ' in duration[1] else ''}s"


def _become(command: Sequence[str], folder: Path, color: bool) -> None:
    os.chdir(folder)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
    os.environ.update(COLUMNS="80", OMP_NUM_THREADS="1")
    # This plugin and no others that happen to be installed.
    os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_PLUGINS="cudamem_testing.plugin")
    for name in ("CI", "PYTEST_ADDOPTS", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "PYTEST_CURRENT_TEST"):
        os.environ.pop(name, None)
    os.environ["FORCE_COLOR" if color else "NO_COLOR"] = "1"
    program, *arguments = command
    if program == "cat":
        print(*(Path(name).read_text(encoding="utf-8") for name in arguments), sep="", end="", flush=True)
        os._exit(0)
    if program == "pytest":
        module = "pytest"
    elif arguments[:1] == ["-m"]:
        module, arguments = arguments[1], arguments[2:]
    else:
        module = None
    sys.path.insert(0, str(folder))
    sys.argv = [module or arguments[0], *(arguments if module else arguments[1:])]
    status: object = 0
    try:
        if module is None:
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else int(status is not None))


def steps(page: str) -> Iterator[tuple[re.Match[str], Step]]:
    """The steps of a page, from top to bottom."""
    for found in _STEP.finditer(page):
        if found["file"] is not None:
            yield found, File(found["file"], found["text"])
        elif found["commands"] is not None:
            yield found, Commands(found["commands"].splitlines())
        else:
            yield found, Printed(found["first"], found["last"], found["printed"])


def played(page: str) -> str:
    """The page as it must be: each block that shows what was printed shows what is printed."""
    with tempfile.TemporaryDirectory() as folder:
        shell, parts, at = Shell(Path(folder)), [], 0
        for found, step in steps(page):
            if (text := shell.do(step)) is not None:
                parts += [page[at : found.start("printed")], text]
                at = found.end("printed")
        return "".join([*parts, page[at:]])


def pages(names: Sequence[str] = ()) -> list[Path]:
    """The pages that are named (``guide/ci``), or all on which something is run."""
    if names:
        return [DOCS / f"{name}.md" for name in names]
    return [file for file in sorted(DOCS.rglob("*.md")) if "```sh\n" in file.read_text(encoding="utf-8")]


def import_what_commands_need(compiler: bool) -> None:
    """Import the package and, for optimizers, torch's compiler: else many children would each import them."""
    forked.import_package()
    if compiler:
        importlib.import_module("torch._dynamo")


def main(arguments: Sequence[str]) -> int:
    """Write the pages that are named, or all; with ``--check`` only compare."""
    import torch

    torch.set_num_threads(1)
    check, stale = "--check" in arguments, 0
    chosen = pages([name for name in arguments if name != "--check"])
    import_what_commands_need(compiler=len(chosen) > 1)
    for file in chosen:
        text = file.read_text(encoding="utf-8")
        with set_aside():  # a child would copy all these objects as it collects garbage
            now = played(text)
        if now == text:
            continue
        stale += 1
        if check:
            sides = (text.splitlines(), now.splitlines())
            print(
                *difflib.unified_diff(*sides, f"{file.relative_to(DOCS)} as written", "as printed", lineterm=""),
                sep="\n",
            )
        else:
            file.write_text(now, encoding="utf-8")
            print(f"written: {file.relative_to(ROOT)}")
    return int(check and stale > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
