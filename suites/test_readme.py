"""What README.md and the page of the tour show of runs is what they print."""

from __future__ import annotations

import re

import pytest
import torch

from suites import readme

PINNED = re.search(r"^torch==(\S+)", (readme.ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
SLOW = {"tour", "attention", "leak"}  # the quick start of the guide is as good a sample


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if one in SLOW else ()) for one in readme.SAMPLES]
)
def test_a_sample_is_what_a_run_prints(name: str) -> None:
    assert PINNED is not None
    if name == "tour" and torch.__version__.partition("+")[0] != PINNED[1]:
        pytest.skip(f"other versions of torch than {PINNED[1]} allocate other numbers of blocks")
    assert readme.SAMPLES[name]() == readme.written(name), f"run: python -m suites.readme {name}"


def test_every_sample_is_generated() -> None:
    """A block that looks like the output of a run has a name."""
    output = set()
    for file in (readme.README, readme.TOUR):
        lines = file.read_text(encoding="utf-8").splitlines()
        fences = [place for place, line in enumerate(lines) if line.startswith("```")]
        for start, end in zip(fences[::2], fences[1::2], strict=True):
            if any("cudamem summary" in line or " leaked (" in line for line in lines[start + 1 : end]):
                output.add(lines[start - 1].removeprefix("<!-- generated: ").removesuffix(" -->"))
    assert output == {*readme.SAMPLES}
    with pytest.raises(ValueError, match=r"^README\.md has no sample gone$"):
        readme.written("gone")


def test_the_table_of_the_tour_names_its_tests() -> None:
    files = sorted((readme.ROOT / "suites/tour").glob("test_*.py"))
    there = [
        (file.name if place == 0 else "", name)
        for file in files
        for place, name in enumerate(re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.M))
    ]
    rows = re.findall(r"^\| (?:\*\*(test_\w+\.py)\*\* )?(test_\w+)\b", readme.TOUR.read_text("utf-8"), re.M)
    assert rows == there


def test_the_readme_is_read_in_minutes() -> None:
    assert len(readme.README.read_text(encoding="utf-8").splitlines()) <= 150
