"""The pages for users: they name every flag, marker and fixture, and their links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import cudamem_testing
from cudamem_testing.model.options import OPTIONS
from cudamem_testing.model.override_marker import override
from cudamem_testing.plugin import __all__ as fixtures

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
REFERENCE = (DOCS / "reference.md").read_text(encoding="utf-8")
ROWS = [line for line in REFERENCE.splitlines() if line.startswith("| `")]
SITE = (ROOT / ".ci" / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("flag", [option.flag for option in OPTIONS])
def test_every_flag_has_one_row(flag: str) -> None:
    assert len([row for row in ROWS if re.match(rf"\| `{flag}[=`]", row)]) == 1


def test_every_ini_setting_and_fixture_has_a_row() -> None:
    assert [row for row in ROWS if row.startswith("| `cudamem_ignore` (ini only)")]
    for name in fixtures:
        assert [row for row in ROWS if re.search(rf"\b{name}\b", row.split("|")[1])], name


def test_every_argument_of_the_marker_is_there() -> None:
    (row,) = [row.split("|")[1] for row in ROWS if "@pytest.mark.cudamem(" in row]
    assert re.findall(r"(\w+)=", row) == [*inspect.signature(override).parameters]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        file, _, heading = target.partition("#")
        if "://" in target:
            continue
        there = (page.parent / file) if file else page
        assert there.exists(), target
        headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M) if heading else []
        assert not heading or heading in [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings]


def test_every_page_is_in_the_site() -> None:
    pages = [str(page.relative_to(DOCS)) for page in PAGES[1:]]
    assert sorted(re.findall(r"^ +- (\S+\.md)$", SITE, re.M)) == pages


def test_every_public_name_has_its_docstring_in_the_reference() -> None:
    names = re.findall(r"^::: cudamem_testing\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.M)
    assert sorted(names) == sorted(cudamem_testing.__all__)


def test_type_checkers_know_every_public_name() -> None:
    """They do not run the lazy import; `strategies`, which needs hypothesis, is not for `import *`."""
    tree = ast.parse((ROOT / "cudamem_testing" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        alias.asname or alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == {*cudamem_testing.__all__, "strategies"}


def test_the_rooms_of_the_contributors_page_are_the_layers() -> None:
    """From top to bottom, as the contract of imports has them."""
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("layers = [")[2].partition("]")[0]
    layers = [sorted(re.findall(r"\w+", line)) for line in contract.splitlines() if line.strip()]
    page = (
        (DOCS / "contributing.md").read_text(encoding="utf-8").partition("## Where things are")[2].partition("\n## ")[0]
    )
    rooms = [sorted(re.findall(r"`(\w+)`", row.split("|")[1])) for row in page.splitlines() if row.startswith("| `")]
    assert rooms == layers


def test_files_that_the_contributors_page_names_are_there() -> None:
    page = (DOCS / "contributing.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+(?:\.py|\.js|/))`", page.partition("## Add a verdict")[2].partition("## Tests")[0])
    assert len(named) > 8
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "cudamem_testing" / name).exists(), name
