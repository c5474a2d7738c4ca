"""Examples of the guide do what its pages say: each is run, and what it prints is what is written."""

from __future__ import annotations

import os
import subprocess

import pytest

from suites import forked, guide

PAGE = """
<!-- file: one.py -->
```python
print("first")
print("second")
print("third")
```

<!-- run: python one.py; from sec; to th -->
```
stale
```

<!-- file: two.py -->
```python
```

<!-- again; to first -->
```
```

   <!-- run: python two.py -->
   ````
   ````
"""


def checked(*names: str) -> str:
    """How pages differ from what is printed."""
    environ = {**os.environ, "PYTHONPATH": str(guide.ROOT)}
    command = [forked.python(), "-m", "suites.guide", "--check", *names]
    done = subprocess.run(command, cwd=guide.ROOT, env=environ, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.subprocess
def test_the_quick_start() -> None:
    assert checked("quick-start") == ""


@pytest.mark.slow
@pytest.mark.subprocess
def test_every_other_page() -> None:
    names = [file.stem for file in guide.pages() if file.stem != "quick-start"]
    assert checked(*names) == ""


def test_every_python_block_of_a_page_is_valid() -> None:
    """Also those that need a card, and so are not run."""
    for file in guide.pages():
        for block in file.read_text(encoding="utf-8").split("```python\n")[1:]:
            compile(block.partition("```")[0], file.name, "exec")


def test_recipes_are_yaml() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with transformers")
    blocks = (guide.FOLDER / "ci.md").read_text(encoding="utf-8").split("```yaml\n")[1:]
    recipes = [yaml.safe_load(block.partition("```")[0]) for block in blocks]
    steps = [step for recipe in recipes[:2] for job in recipe["jobs"].values() for step in job["steps"]]
    assert all({"uses", "run"} & {*step} for step in steps)
    assert [*recipes[2]] == ["memory", "memory-gpu"]


@pytest.mark.subprocess
def test_a_page_is_played_from_top_to_bottom() -> None:
    now = guide.played(PAGE)
    assert [step.text for _, step in guide.steps(now)] == [
        'print("first")\nprint("second")\nprint("third")\n',
        "second\nthird\n",
        "",
        "first\n",
        "",
    ]


def test_a_part_that_is_not_there_is_an_error() -> None:
    step = guide.Step("run", "", "second", "fourth", "", "")
    with pytest.raises(ValueError, match="no line after 'second' begins with 'fourth':\nfirst\nsecond"):
        guide.part(["first", "second"], step)
    with pytest.raises(ValueError, match="no line has 'second'"):
        guide.part(["first"], step)
