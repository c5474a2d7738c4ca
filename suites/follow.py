"""``python -m suites.follow [PAGE ...]``: follow pages as a reader does, and print how long that takes.

Each page gets an empty folder, each command a process of its own, with the plugins that are installed. A row has the
words, files and commands of a page, how long the commands took, and how long a reader needs for all of it, beside the
minutes that the page states. A command that ends with another status than pytest's 0 (passed) or 1 (failed) is named.

``--on cuda`` puts the tensors of the examples on a card, by the ``conftest.py`` of the quick start; ``--on cpu``
measures the CPU on a machine with a card. ``--out FOLDER`` keeps what every command printed, one file a page.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from suites import guide

#: How fast a reader is: words of text and code a minute, seconds to copy a file, seconds to type a command.
WORDS, FILE, COMMAND = 200, 15, 10
NUMBERS = {"Five": 5, "Ten": 10, "Fifteen": 15, "Twenty-five": 25}
HEAD = ("page", "states", "words", "files", "commands", "they took", "processor", "reader")
_STATED = re.compile(rf"^({'|'.join(NUMBERS)}) minutes\b", re.M)


@dataclass(frozen=True)
class Effort:
    """What a page asks of its reader, without the time that commands run."""

    words: int
    files: int
    commands: int

    @property
    def minutes(self) -> float:
        """The time to read it, to copy its files and to type its commands."""
        return self.words / WORDS + (self.files * FILE + self.commands * COMMAND) / 60


@dataclass
class Followed:
    """A page, and the seconds that its commands took by the clock and by the processor."""

    page: Path
    clock: float = 0.0
    processor: float = 0.0
    wrong: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the page, as in ``guide/ci``."""
        return str(self.page.relative_to(guide.DOCS).with_suffix(""))


def stated(page: str) -> int | None:
    """The minutes that a page states at its head."""
    found = _STATED.search(page)
    return NUMBERS[found[1]] if found else None


def effort(page: str) -> Effort:
    """What a page asks of its reader."""
    parts = [step for _, step in guide.steps(page)]
    return Effort(
        words=len(re.sub(r"<!--.*?-->", "", page).split()),
        files=sum(isinstance(step, guide.File) for step in parts),
        commands=sum(len(step.lines) for step in parts if isinstance(step, guide.Commands)),
    )


def follow(page: Path, on: str | None, out: Path | None) -> Followed:
    """Do every step of a page in an empty folder; what is printed is in a file of ``out`` as soon as it is there."""
    followed = Followed(page)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if on == "cuda":
            guide.write(guide.File("conftest.py", 'import torch\n\ntorch.set_default_device("cuda")\n'), folder)
        if on == "cpu":
            guide.write(guide.File("pytest.ini", "[pytest]\ncudamem_device = cpu\n"), folder)
        for _, step in guide.steps(page.read_text(encoding="utf-8")):
            if isinstance(step, guide.File):
                guide.write(step, folder)
            elif isinstance(step, guide.Commands):
                for line in step.lines:
                    _run(line, folder, followed)
                    if out is not None:
                        (out / f"{followed.name.replace('/', '_')}.txt").write_text("\n".join(followed.printed))
    return followed


def _run(line: str, folder: Path, followed: Followed) -> None:
    program, *arguments = shlex.split(line)
    command = {"pytest": [sys.executable, "-m", "pytest"], "python": [sys.executable]}.get(program, [program])
    started = time.perf_counter()
    process = subprocess.Popen([*command, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with process.stdout or sys.stdin.buffer as output:
        printed = output.read().decode(errors="replace")
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    clock, processor = time.perf_counter() - started, used.ru_utime + used.ru_stime
    followed.clock += clock
    followed.processor += processor
    followed.printed += [
        f"$ {line}",
        printed,
        f"[status {process.returncode}, {clock:.1f} s by the clock, {processor:.1f} s of the processor]",
        "",
    ]
    if process.returncode not in (0, 1):
        followed.wrong.append(f"{line}: status {process.returncode}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Follow the pages, print a row for each; status 1 if a command could not run."""
    parser = argparse.ArgumentParser(prog="python -m suites.follow", description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="such as guide/quick-start; all without")
    parser.add_argument("--on", choices=("cuda", "cpu"), help="where the examples run")
    parser.add_argument("--out", type=Path, help="a folder for what was printed")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="how many pages are followed at once")
    options = parser.parse_args(arguments)
    chosen = guide.pages(options.pages)
    print(f"| {' | '.join(HEAD)} |", f"| --- {'| ---: ' * (len(HEAD) - 1)}|", sep="\n")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    status = 0
    with ThreadPoolExecutor(options.at_once) as pool:
        for followed in pool.map(lambda page: follow(page, options.on, options.out), chosen):
            text = followed.page.read_text(encoding="utf-8")
            needs = effort(text)
            minutes = needs.minutes + followed.clock / 60
            cells = (followed.name, f"{stated(text)} min", needs.words, needs.files, needs.commands)
            took = f"{followed.clock:.0f} s | {followed.processor:.0f} s | {minutes:.1f} min"
            print("|", " | ".join(map(str, cells)), "|", took, "|", flush=True)
            for line in followed.wrong:
                print(f"{followed.name}: {line}")
                status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
