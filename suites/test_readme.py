"""What README.md shows of runs is what they print."""

from __future__ import annotations

import re

import pytest

from suites import readme

SLOW = {"tour"}


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow if one in SLOW else ()) for one in readme.SAMPLES]
)
def test_a_sample_is_what_a_run_prints(name: str) -> None:
    assert readme.SAMPLES[name]() == readme.written(name), f"run: python -m suites.readme {name}"


def test_every_sample_is_generated() -> None:
    """A block that looks like the output of a run has a name."""
    text = readme.README.read_text(encoding="utf-8")
    blocks = re.findall(r"(?:<!-- generated: (\w+) -->\n)?```\n(.*?)```", text, re.S)
    output = {name for name, block in blocks if "cudamem summary" in block or block.startswith("cudamem: ")}
    assert output == {*readme.SAMPLES}
    with pytest.raises(ValueError, match=r"^README\.md has no sample gone$"):
        readme.written("gone")
