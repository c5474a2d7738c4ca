"""Memory outside pytest: a broken budget says what was live, by line."""

from __future__ import annotations

import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from suites import forked

ROOT = Path(__file__).parents[2]
SCRIPT = """
    import torch
    from cudamem_testing import Memory, OverBudget

    kept = []

    def load(size):
        return torch.zeros(size * 2**18)

    with Memory.on("cpu") as memory:
        for limits in ({LIMITS}):
            try:
                with memory.budget(**limits):
                    kept.append(load(3))
                    load(2)
            except OverBudget as error:
                print(error)
            else:
                print("within")
"""


def lines(folder: Path, limits: str) -> list[str]:
    """What a script prints that is run in a folder."""
    (folder / "generate.py").write_text(dedent(SCRIPT).replace("{LIMITS}", limits))
    done = subprocess.run(
        [forked.python(), "generate.py"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.subprocess
def test_what_was_live_at_the_peak(tmp_path: Path) -> None:
    found = lines(tmp_path, '{"peak": "4MiB"},')
    assert found[0].startswith("cudamem: peak 5.0 MiB above start is over its budget of 4.0 MiB by 1.0 MiB")
    place = next(n for n, line in enumerate(found) if line.startswith("live at the peak: 5.0 MiB"))
    assert "generate.py:8 in load" in "\n".join(found[place:])


@pytest.mark.slow
@pytest.mark.subprocess
def test_what_is_still_live(tmp_path: Path) -> None:
    """Of this region: the one before left as much in the same list."""
    found = lines(tmp_path, '{"peak": "5MiB"}, {"retained": 0}')
    assert found[0] == "within"
    place = next(n for n, line in enumerate(found) if line.startswith("still live: 3.0 MiB in 1 block"))
    assert "generate.py:8 in load" in "\n".join(found[place:])


@pytest.mark.slow
@pytest.mark.subprocess
def test_within_its_budget_nothing_is_said(tmp_path: Path) -> None:
    assert lines(tmp_path, '{"peak": "5MiB", "retained": "3MiB"},') == ["within"]
