"""Examples of the guide do what its pages say: each is run, and what it prints is what is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from suites import follow, forked, guide

#: The version of torch in constraints.txt.
PINNED = (guide.ROOT / "constraints.txt").read_text(encoding="utf-8").partition("torch==")[2].split()[0]
PAGE = """
`one.py`

```python
print("first")
print("second")
print("third")
```

```sh
python one.py
```

<!-- prints; from sec; to th -->
```
stale
```

<!-- prints; to first -->
```
```

`two.txt`

```text
kept
```

```sh
cat two.txt
python one.py
```

<!-- prints; to first -->
````
````
"""


def checked(*names: str) -> str:
    """How pages differ from what is printed."""
    environ = {**os.environ, "PYTHONPATH": str(guide.ROOT)}
    command = [forked.python(compiler=True), "-m", "suites.guide", "--check", *names]
    done = subprocess.run(command, cwd=guide.ROOT, env=environ, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.subprocess
def test_the_quick_start() -> None:
    assert checked("guide/quick-start") == ""


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.simulated_card
@pytest.mark.skipif(PINNED not in torch.__version__, reason=f"samples are what torch {PINNED} prints")
def test_every_other_page() -> None:
    names = [str(file.relative_to(guide.DOCS).with_suffix("")) for file in guide.pages()]
    assert checked(*(name for name in names if name != "guide/quick-start")) == ""


def test_every_python_block_of_a_page_is_valid() -> None:
    """Also those that need a card, and so are not run."""
    for file in guide.pages():
        for block in file.read_text(encoding="utf-8").split("```python\n")[1:]:
            compile(block.partition("```")[0], file.name, "exec")


def test_recipes_are_yaml() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with transformers")
    blocks = (guide.DOCS / "guide" / "ci.md").read_text(encoding="utf-8").split("```yaml\n")[1:]
    recipes = [yaml.safe_load(block.partition("```")[0]) for block in blocks]
    steps = [step for recipe in recipes[:2] for job in recipe["jobs"].values() for step in job["steps"]]
    assert all({"uses", "run"} & {*step} for step in steps)
    assert [*recipes[2]] == ["memory", "memory-gpu", "memory-of-shards"]
    for recipe in recipes:  # each makes a comment of the merged report or of the only one
        text = json.dumps(recipe)
        assert "report report.json --markdown > comment.md" in text
        assert ("--splits" in text) == ("merge" in text)


@pytest.mark.subprocess
def test_a_page_is_played_from_top_to_bottom() -> None:
    found = [step for _, step in guide.steps(guide.played(PAGE))]
    assert found == [
        guide.File("one.py", 'print("first")\nprint("second")\nprint("third")\n'),
        guide.Commands(["python one.py"]),
        guide.Printed("sec", "th", "second\nthird\n"),
        guide.Printed(None, "first", "first\n"),
        guide.File("two.txt", "kept\n"),
        guide.Commands(["cat two.txt", "python one.py"]),
        guide.Printed(None, "first", "kept\nfirst\n"),
    ]


def test_a_part_that_is_not_there_is_an_error() -> None:
    step = guide.Printed("second", "fourth", "")
    with pytest.raises(ValueError, match="no line after 'second' begins with 'fourth':\nfirst\nsecond"):
        guide.part(["first", "second"], step)
    with pytest.raises(ValueError, match="no line has 'second'"):
        guide.part(["first"], step)


def test_every_page_states_the_minutes_that_a_reader_needs() -> None:
    """As the index does: to read it, to copy files, to type commands, and ten seconds for each to run, as on a card."""
    rows = re.findall(r"^\|.*?\]\(([\w/-]+)\.md\).*\| (\d+) \|$", (guide.DOCS / "index.md").read_text("utf-8"), re.M)
    assert {guide.DOCS / f"{name}.md" for name, _ in rows} >= {*guide.pages()}
    for name, minutes in rows:
        page = (guide.DOCS / f"{name}.md").read_text(encoding="utf-8")
        needs = follow.effort(page)
        assert (name, follow.stated(page)) == (name, int(minutes))
        assert needs.minutes + needs.commands * 10 / 60 <= int(minutes), name


@pytest.mark.subprocess
def test_a_page_is_followed_by_processes_of_their_own(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("python one.py", "python one.py\npython -c 'raise SystemExit(3)'", 1))
    followed = follow.follow(page, "cpu", None)
    assert followed.wrong == ["python -c 'raise SystemExit(3)': status 3"]
    assert followed.clock > 0 < followed.processor
    assert followed.printed[:2] == ["$ python one.py", "first\nsecond\nthird\n"]
    assert follow.effort(PAGE) == follow.Effort(words=27, files=2, commands=3)
