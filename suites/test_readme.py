"""What README.md shows of runs is what they print."""

from __future__ import annotations

import re

import pytest

from suites import readme

SLOW = {"tour", "attention"}


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if one in SLOW else ()) for one in readme.SAMPLES]
)
def test_a_sample_is_what_a_run_prints(name: str) -> None:
    assert readme.SAMPLES[name]() == readme.written(name), f"run: python -m suites.readme {name}"


def test_every_sample_is_generated() -> None:
    """A block that looks like the output of a run has a name."""
    lines = readme.README.read_text(encoding="utf-8").splitlines()
    fences = [place for place, line in enumerate(lines) if line.startswith("```")]
    blocks = [(lines[start - 1], lines[start + 1 : end]) for start, end in zip(fences[::2], fences[1::2], strict=True)]
    shows = [
        (above, any("cudamem summary" in line or " leaked (" in line for line in block)) for above, block in blocks
    ]
    output = {above.removeprefix("<!-- generated: ").removesuffix(" -->") for above, shown in shows if shown}
    assert output == {*readme.SAMPLES}
    with pytest.raises(ValueError, match=r"^README\.md has no sample gone$"):
        readme.written("gone")


def test_the_table_of_the_tour_names_its_tests() -> None:
    files = sorted((readme.ROOT / "suites/tour").glob("test_*.py"))
    there = [name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.M)]
    text = readme.README.read_text(encoding="utf-8")
    assert re.findall(r"^\| \[?(test_\w+)\b", text, re.M) == there
    links = re.findall(r"^\| \[test_\w+\]\((\S+?)\)", text, re.M)
    assert links == [str(file.relative_to(readme.ROOT)) for file in files]
