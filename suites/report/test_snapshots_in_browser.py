"""The pages of snapshots in a headless Chromium without a network: drawn, told, and without a violation of axe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudamem_testing.__main__ import main
from suites.report.conftest import CHROMIUM, DESK, PHONE, Tab
from suites.report.pages import HOSTILE
from suites.snapshots.allocator import MIB, Allocator

RECORDINGS = Path(__file__).parents[2] / "fixtures/recordings"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: set CHROMIUM, or install Debian's chromium"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every verb's page, and one of a snapshot with hostile names."""
    folder = tmp_path_factory.mktemp("pages")
    failed, training = (str(RECORDINGS / f"{name}.pickle.gz") for name in ("out_of_memory", "training_step"))
    for verb in ("show", "why", "flamegraph", "churn"):
        main(["snapshot", verb, failed, training, "--html", str(folder / f"{verb}.html")])
    main(["snapshot", "diff", training, failed, "--html", str(folder / "diff.html")])
    allocator = Allocator()
    for _ in range(20):
        frames = [{"filename": f"/p/{HOSTILE}.py", "line": 1, "name": HOSTILE}]
        allocator.free(allocator.malloc(3 * MIB, frames=frames))
    allocator.malloc(5 * MIB, frames=frames)
    (folder / "hostile.json").write_text(json.dumps(allocator.snapshot()))
    main(["snapshot", "show", str(folder / "hostile.json"), "--html", str(folder / "hostile.html")])
    return folder


def opened(tab: Tab, file: Path, size: dict[str, int] = DESK, dark: bool = False) -> Any:
    tab.said.clear()
    return tab.show(f"file://{file}", size, dark, "main > div")


@pytest.mark.parametrize(("size", "dark"), [(DESK, False), (PHONE, True)], ids=["desk", "phone, dark"])
def test_no_page_has_an_error_or_a_violation(tab: Tab, files: Path, size: dict[str, int], dark: bool) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the package axe-playwright-python")
    checker = axe.Axe()
    for file in sorted(files.glob("*.html")):
        page = opened(tab, file, size, dark)
        found = checker.run(page)
        assert [one["id"] for one in found.response["violations"]] == [], (file.name, found.generate_report())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), file.name
        assert tab.said == [], file.name


def test_the_map_tells_what_the_pointer_is_on(tab: Tab, files: Path) -> None:
    page = opened(tab, files / "why.html")
    told = page.locator(".flame .told").first
    assert told.inner_text() == "478.0 MiB in 25 segments, of which 232.0 MiB lie unused beside live blocks"
    page.locator(".map .piece").first.hover()
    assert told.inner_text().startswith("16.0 MiB programs.py:202 in out_of_memory in segment 1 of 25: 16.0 MiB of")


def test_hostile_names_are_text(tab: Tab, files: Path) -> None:
    page = opened(tab, files / "hostile.html")
    assert page.title() == "Memory snapshot"
    assert tab.said == []
