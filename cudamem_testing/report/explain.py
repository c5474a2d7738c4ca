"""What a verdict means: its section of the page ``docs/verdicts.md``, which a wheel holds as well.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from cudamem_testing.model.findings import Verdict

PACKAGE = Path(__file__).parents[1]
HEADING = "## "


def page() -> str:
    """The text of the page, of the installed package or of the source tree.

    Raises:
        OSError: when it is in neither.
    """
    installed, source = (folder / "docs" / "verdicts.md" for folder in (PACKAGE, PACKAGE.parent))
    return (installed if installed.exists() else source).read_text(encoding="utf-8")


def explained(word: str, text: str) -> str:
    """The section of a verdict in the page's text, below its name; ``word`` is the verdict or its anchor.

    Raises:
        ValueError: when there is no such verdict.
    """
    found = next((verdict for verdict in Verdict if word in (verdict.value, verdict.anchor)), None)
    if found is None:
        raise ValueError(f"{word!r} is no verdict: write {', '.join(verdict.anchor for verdict in Verdict)}")
    lines = text.splitlines()
    below = lines[lines.index(HEADING + found.value) + 1 :]
    section = "\n".join(takewhile(lambda line: not line.startswith(HEADING), below))
    return f"{found.value}\n\n{section.strip()}"
