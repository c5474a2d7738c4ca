"""Facts that suites make by hand: references by their words."""

from __future__ import annotations

from cudamem_testing.model.edges import Kind, Reference
from cudamem_testing.model.references import Path, RootKind, Step

_WORDS = (
    ("module ", RootKind.MODULE),
    ("class ", RootKind.CLASS),
    ("lru_cache of ", RootKind.LRU_CACHE),
    ("frame ", RootKind.FRAME),
    ("fixture ", RootKind.FIXTURE),
)


def path(root: str, *steps: tuple[Kind, str, str], kind: RootKind | None = None) -> Path:
    """A chain of references from a root; its kind follows from its first word unless one is given."""
    word, known = next(((word, one) for word, one in _WORDS if root.startswith(word)), ("", RootKind.HARNESS))
    name = root.removeprefix(word).partition(" (")[0].strip("'")
    return Path(root, kind or known, tuple(Step(Reference(one, text), type_) for one, text, type_ in steps), name)
