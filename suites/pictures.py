"""``python -m suites.pictures``: draw the pictures of the guide and of README.md into ``docs/images``.

The pages are screenshots of what the guide's page on the report makes, by a headless Chromium without a network. The
terminal is a recorded session, the commands of the quick start one after the other. Needs the extra ``browser``,
Chromium, and rich.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from suites import guide

PROJECT = "/home/you/project"
"""What the temporary folder of a session is called, so that the same session is the same picture."""
ROWS, HEIGHT, PAUSE = 32, 24.4, 3.0
"""Rows of the terminal, the height of one in pixels, seconds before the next command."""
#: What rich fills in; the words in capitals are filled in by ``recorded``.
FORMAT = """\
<svg viewBox="0 0 {width} WINDOW" xmlns="http://www.w3.org/2000/svg">
  <style>
    .{unique_id}-matrix {{ font: {char_height}px "Fira Code", Menlo, Consolas, monospace; white-space: pre }}
    .{unique_id}-title {{ font: bold 18px sans-serif }}
    {styles}
    .line {{ opacity: 0; animation: appear 0s forwards }}
    .scroll {{ animation: scroll SECONDSs step-end forwards }}
    @keyframes appear {{ to {{ opacity: 1 }} }}
    @keyframes scroll {{
      PLACES
    }}
    @media (prefers-reduced-motion) {{ .line, .scroll {{ animation-duration: 0s; animation-delay: 0s !important }} }}
  </style>
  <defs><clipPath id="{unique_id}-rows"><rect width="{terminal_width}" height="VISIBLE"/></clipPath></defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-rows)">
    <g class="{unique_id}-matrix scroll">
    {matrix}
    </g>
  </g>
</svg>
"""
IMAGES = guide.ROOT / "docs" / "images"
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-component-update", "--no-first-run"]


def made(page: str, *commands: str) -> guide.Shell:
    """The folder of a page after all its steps, and after some commands."""
    shell = guide.Shell(Path(tempfile.mkdtemp()))
    for _, step in guide.steps((guide.DOCS / "guide" / f"{page}.md").read_text(encoding="utf-8")):
        shell.do(step)
    for command in commands:
        shell.lines = guide.run(shlex.split(command), shell.folder)
    return shell


def screenshots(report: Path) -> None:
    """The overview of a report, and its test over budget."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(offline=True, viewport={"width": 1200, "height": 860}, device_scale_factor=1)
        page = context.new_page()
        page.goto(f"file://{report}")
        page.wait_for_selector("main > div")
        page.screenshot(path=IMAGES / "overview.png")
        page.goto(f"file://{report}#test=test_model.py::test_step")
        page.wait_for_selector("main svg")
        page.screenshot(path=IMAGES / "test.png", full_page=True)
        browser.close()


def session(page: str) -> list[str]:
    """What a reader of a page types and sees, with colours: the lines of its commands begin with ``$``."""
    shell, lines = guide.Shell(Path(tempfile.mkdtemp())), []
    for _, step in guide.steps((guide.DOCS / "guide" / f"{page}.md").read_text(encoding="utf-8")):
        if isinstance(step, guide.Commands):
            for command in step.lines:
                printed = guide.run(shlex.split(command), shell.folder, color=True)
                lines += [f"$ {command}", *(line.replace(str(shell.folder), PROJECT) for line in printed if line), ""]
        elif isinstance(step, guide.File):
            guide.write(step, shell.folder)
    return lines


def times(lines: Sequence[str]) -> list[float]:
    """When each line of a session appears, in seconds: a command after a pause, its output after another."""
    found, now = [], 0.0
    for number, line in enumerate(lines):
        after_command = number > 0 and lines[number - 1].startswith("$")
        now += PAUSE if line.startswith("$") and number else 1.0 if after_command else 0.05
        found.append(now)
    return found


def recorded(lines: Sequence[str], title: str) -> str:
    """A session as an animated picture of a terminal with ``ROWS`` rows, which scrolls; it loads nothing."""
    from rich.console import Console
    from rich.text import Text

    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=92, file=nowhere, force_terminal=True)
        for line in lines:
            console.print(Text.from_ansi(line), overflow="crop", no_wrap=True)
        drawn = console.export_svg(title=title, code_format=FORMAT, unique_id="session")
    at = times(lines)
    places = [
        f"{100 * when / at[-1]:.2f}% {{ transform: translateY({-HEIGHT * max(0, number + 1 - ROWS):.1f}px) }}"
        for number, when in enumerate(at)
    ]
    drawn = re.sub(
        r'<text class="(session-r\d+)"([^>]*) clip-path="url\(#session-line-(\d+)\)">',
        lambda text: f'<text class="{text[1]} line"{text[2]} style="animation-delay: {at[int(text[3])]:.2f}s">',
        drawn,
    )
    whole = re.search(r'height="([\d.]+)" rx="8"', drawn)
    assert whole is not None
    visible = ROWS * HEIGHT
    for name, value in (
        ("WINDOW", f"{visible + 60:.0f}"),
        ("VISIBLE", f"{visible:.0f}"),
        ("SECONDS", f"{at[-1]:.1f}"),
        ("PLACES", "\n      ".join(places)),
        (whole[0], f'height="{visible + 50:.0f}" rx="8"'),
    ):
        drawn = drawn.replace(name, value)
    return drawn


def main() -> None:
    """Draw all of them."""
    IMAGES.mkdir(exist_ok=True)
    screenshots(made("reading-the-report").folder / "report.html")
    (IMAGES / "terminal.svg").write_text(recorded(session("quick-start"), "the quick start"), encoding="utf-8")


if __name__ == "__main__":
    main()
