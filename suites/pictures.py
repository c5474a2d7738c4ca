"""``python -m suites.pictures``: draw the pictures of the guide and of README.md into ``docs/images``.

The pages are screenshots of what the guide's page on the report makes, by a headless Chromium without a network. The
terminal is the failing test of the quick start. Needs the extra ``browser``, Chromium, and rich.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from pathlib import Path

from suites import guide

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


def terminal(shell: guide.Shell, command: str) -> None:
    """What a command prints, as a picture of a terminal."""
    from rich.console import Console
    from rich.text import Text

    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=92, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(f"$ {command}"))
        for line in guide.run(shlex.split(command), shell.folder, color=True):
            console.print(Text.from_ansi(line))
        console.save_svg(str(IMAGES / "terminal.svg"), title="pytest --cudamem")


def main() -> None:
    """Draw all of them."""
    IMAGES.mkdir(exist_ok=True)
    screenshots(made("reading-the-report").folder / "report.html")
    terminal(made("quick-start"), "pytest --cudamem")


if __name__ == "__main__":
    main()
