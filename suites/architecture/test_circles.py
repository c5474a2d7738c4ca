"""No circle of imports: a module never imports, at once or later or for its types, what imports it."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx as nx
import pytest

from suites.architecture.source import MODULES, PACKAGE, tree, walk

ROOT = PACKAGE.parent
BY_NAME = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}


def imported(module: ast.Module, name: str = "") -> set[str]:
    """The modules of the package that a module of some name mentions in its imports, wherever they stand."""
    parts = name.split(".") if BY_NAME.get(name, Path()).name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in walk(module):
        if isinstance(node, ast.ImportFrom):
            above = parts[: len(parts) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            inner = {f"{source}.{alias.name}" for alias in node.names}
            found |= inner & BY_NAME.keys() or {source} & BY_NAME.keys()
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & BY_NAME.keys()
    return found


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    graph = nx.DiGraph([(one, other) for one, others in edges.items() for other in others])
    return [sorted(names) for names in nx.strongly_connected_components(graph) if len(names) > 1]


#: Values that show themselves: a method imports what renders it when it is called, and that knows the value.
SHOWING = {
    "model.blocks": {"model.flames"},
    "snapshots.record": {"snapshots.replay"},
    "trace.categories": {"trace.category_text"},
    "trace.graph": {"trace.categories", "trace.draw", "trace.lifetimes", "trace.text"},
    "trace.timeline": {"trace.timeline_text"},
}


def edges() -> dict[str, set[str]]:
    return {name: imported(tree(path), name) for name, path in BY_NAME.items()}


@pytest.mark.slow
def test_no_circle_of_imports() -> None:
    shown = {f"cudamem_testing.{name}": {f"cudamem_testing.{one}" for one in some} for name, some in SHOWING.items()}
    assert circles({name: some - shown.get(name, set()) for name, some in edges().items()}) == []


@pytest.mark.parametrize("value", SHOWING)
def test_values_import_their_renderers_in_methods(value: str) -> None:
    module = tree(BY_NAME[f"cudamem_testing.{value}"])
    top = ast.Module([node for node in module.body if not isinstance(node, ast.ClassDef)], [])
    renderers = {f"cudamem_testing.{one}" for one in SHOWING[value]}
    assert imported(top, f"cudamem_testing.{value}").isdisjoint(renderers)
    assert renderers <= imported(module, f"cudamem_testing.{value}")


@pytest.mark.parametrize(
    "text",
    [
        "from cudamem_testing.model import sizes",
        "from cudamem_testing.model.sizes import count",
        "import cudamem_testing.model.sizes",
        "def late():\n    from cudamem_testing.model.sizes import count",
        "if TYPE_CHECKING:\n    from cudamem_testing.model.sizes import count",
    ],
)
def test_every_kind_of_import_counts(text: str) -> None:
    assert imported(ast.parse(text)) == {"cudamem_testing.model.sizes"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from .text import render", "cudamem_testing.trace.graph"),
        ("from . import text", "cudamem_testing.trace.graph"),
        ("from .text import render", "cudamem_testing.trace"),
        ("from ..trace import text", "cudamem_testing.graphs.dot"),
    ],
)
def test_a_relative_import_counts(text: str, name: str) -> None:
    assert imported(ast.parse(text), name) == {"cudamem_testing.trace.text"}


def test_a_circle_is_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
