"""The source of the package: its files, their syntax trees, and what tests of it read from a tree."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cudamem_testing

PACKAGE = Path(cudamem_testing.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    """A module's syntax, or an empty one for a source in another language."""
    return ast.parse(path.read_text(encoding="utf-8") if path.suffix == ".py" else "")


@cache
def walk(module: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a tree in the order of ``ast.walk``: found once, which takes longer than most rules."""
    found: list[ast.AST] = []
    pending: deque[ast.AST] = deque([module])
    while pending:
        node = pending.popleft()
        found.append(node)
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                pending.append(value)
            elif type(value) is list:
                pending += [one for one in value if isinstance(one, ast.AST)]
    return tuple(found)


def forget() -> None:
    """Free the trees: a million objects would slow every collection of garbage."""
    tree.cache_clear()
    walk.cache_clear()


def name(path: Path) -> str:
    """A path in the package."""
    return path.relative_to(PACKAGE).as_posix()


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an attribute of a name; empty for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def imports(module: ast.Module) -> Iterator[str]:
    """Everything that is imported, as ``module`` or ``module.name``."""
    for node in walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
