"""Imports stand at the head of a module. Those inside functions follow one of the rules here, which are computed.

A door between two rooms is late, and what is behind it imports at its head. The rules follow from what a run loads:
pytest loads the plugin in every run, a run that finds nothing loads what it measures with, and neither loads torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from suites.architecture.source import tree
from suites.architecture.test_circles import BY_NAME, SHOWING, imported
from suites.architecture.test_imports import NEEDED, READING, SUMMARY

pytestmark = pytest.mark.slow  # it reads the source, and shows nothing that a user sees

PACKAGE = "cudamem_testing"
#: At most so many imports are inside functions: fewer is a new limit.
MOST = 150
#: Doors that no rule explains, and why each is late.
DOORS = {
    ("__main__", "report.commands"): "--help needs no command",
    ("__main__", "report.snapshots.commands"): "other commands do not read snapshots",
    ("__main__", "wording.meanings"): "explain reads no reports",
    ("plugin.expected_report", "report.schema"): "a test fails without a check of a text",
    ("plugin.collector", "report.terminal"): "with -q a run without news has no summary",
    ("recorders.choose", "recorders.cpu"): "a recorder loads when its device is measured",
    ("recorders.cuda", "recorders.native_trap"): "few tests make an allocation fail",
    ("recorders.cuda", "recorders.outside"): "simulated cards have no memory outside the allocator",
    ("report.report_files", "report.page"): "a page is made in the runs that ask for one",
    ("run.by_address", "verdicts.left_over"): "a run on a card that finds nothing does not need it",
    ("run.cycles", "recorders.cpu"): "a recorder loads when its device is measured",
    ("snapshots.evidence", "snapshots.replay"): "a run on a card that finds nothing does not need it",
}
#: Modules that are optional, or absent on some systems, or slow to import.
OUTSIDE = {
    *("torch", "cuda", "pynvml", "matplotlib", "jinja2", "markupsafe", "hypothesis"),
    *("pytest_benchmark", "fcntl", "difflib"),
}


def late(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines with imports inside functions, and what each imports."""
    for function, node in statements(module):
        if function and isinstance(node, ast.Import | ast.ImportFrom):
            names = [one.name for one in node.names]
            yield from ((node.lineno, one) for one in (names if isinstance(node, ast.Import) else _from(node)))


def statements(node: ast.AST, function: bool = False) -> Iterator[tuple[bool, ast.AST]]:
    """All statements in the order of the source, and whether each is in a function."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for one in getattr(node, field, ()):
            yield function, one
            yield from statements(one, function or isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def _from(node: ast.ImportFrom) -> list[str]:
    source = "." * node.level + (node.module or "")
    inner = [f"{source}.{one.name}" for one in node.names]
    return [one for one in inner if one in BY_NAME] or [source]


def at_head(module: ast.Module) -> ast.Module:
    """The statements that run when a module is imported; not those for types alone."""
    pending, kept = [*module.body], list[ast.stmt]()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If | ast.Try | ast.With):
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            pending += [*([] if typing else node.body), *getattr(node, "orelse", ())]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            kept.append(node)
    return ast.Module(kept, [])


@cache
def loads(name: str) -> frozenset[str]:
    """The modules that are imported with one, and ``torch`` if that is."""
    found, pending = set[str](), [name]
    while pending:
        one = pending.pop()
        if one in found:
            continue
        found.add(one)
        if one not in BY_NAME:
            continue
        head = at_head(tree(BY_NAME[one]))
        parents = [one.rpartition(".")[0]] if "." in one else []
        pending += [*imported(head, one), *parents]
        pending += ["torch"] if any(map(_of_torch, head.body)) else []
    return frozenset(found)


def _of_torch(node: ast.stmt) -> bool:
    names = [one.name for one in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
    return any(name.partition(".")[0] == "torch" for name in names)


def full(names: dict[str, set[str]]) -> set[str]:
    return {f"{PACKAGE}.{package}.{module}" for package, modules in names.items() for module in modules}


CLEAN = {*full(NEEDED), *full(SUMMARY), *(f"{PACKAGE}.{package}" for package in (*NEEDED, *SUMMARY))}
WATCHED = full(READING)


def rule(name: str, target: str) -> str | None:
    """Why a module may import another inside a function; ``None`` if it may not."""
    own, other = (one.removeprefix(f"{PACKAGE}.") for one in (name, target))
    if not target.startswith((".", PACKAGE)):
        return "it may be absent" if target.partition(".")[0] in OUTSIDE else None
    if own in SHOWING:
        return "a value shows itself"
    if name in loads(f"{PACKAGE}.plugin") and not loads(target) <= loads(f"{PACKAGE}.plugin"):
        return "pytest loads the plugin in every run"
    if "torch" in loads(target) - loads(name):
        return "torch may not be imported"
    if name in CLEAN and target not in CLEAN:
        return "a run that finds nothing does not need it"
    if name in WATCHED and target not in CLEAN | WATCHED:
        return "garbage is read in every measured run, and nothing is imported inside a collection"
    return DOORS.get((own, other))


def test_an_import_inside_a_function_has_a_reason() -> None:
    found = [(name, *one) for name, path in BY_NAME.items() for one in late(tree(path)) if rule(name, one[1]) is None]
    assert found == []


def test_imports_inside_functions_are_few() -> None:
    assert sum(len({line for line, _ in late(tree(path))}) for path in BY_NAME.values()) <= MOST


def test_each_door_is_there() -> None:
    found = {(name, target) for name, path in BY_NAME.items() for _, target in late(tree(path))}
    assert {(f"{PACKAGE}.{name}", f"{PACKAGE}.{target}") for name, target in DOORS} <= found


def test_the_rule_finds_what_it_must() -> None:
    text = "def f():\n    import json\n    from cudamem_testing.model import sizes\n    from .text import render\n"
    found = [*late(ast.parse(text))]
    assert found == [(2, "json"), (3, "cudamem_testing.model.sizes"), (4, ".text")]
    assert not any(rule("cudamem_testing.operators.table", target) for _, target in found)
    assert rule("cudamem_testing.report.terminal", "cudamem_testing.wording")
    assert rule("cudamem_testing.plugin", "cudamem_testing.run.session")
    assert rule("cudamem_testing.run.analysis", "cudamem_testing.run.sweep") == "torch may not be imported"
    assert rule("cudamem_testing.report.terminal", "cudamem_testing.model.records") is None
    assert rule("cudamem_testing.graphs.session", "cudamem_testing.graphs.cuda") is None
