"""Imports stand at the head of a module. Those inside functions follow one of the rules here."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from suites.architecture.test_circles import BY_NAME, SHOWING
from suites.architecture.test_imports import NEEDED
from suites.architecture.test_layout import tree

pytestmark = pytest.mark.slow  # it reads the source, and shows nothing that a user sees

#: What a run loads that finds nothing: it loads late what only a finding or an option needs.
CLEAN = {f"{package}.{module}" for package, modules in NEEDED.items() for module in modules}
#: Packages and modules that load late what one of several uses needs, by path, and why.
LATE = {
    "__main__": "a command loads what it runs, and --help nothing",
    "plugin": "pytest loads the plugin in every run, also in those that ask for nothing",
    "ranks": "it is imported by each process that a test starts, and measures where torch is there",
    "recorders": "a recorder loads when its device is measured, and what explains memory when a test asks",
    "model.options": "values are parsed in the runs that give them",
    "model.override": "a marker is parsed in the runs that have one",
    "report.report_files": "a page is made in the runs that ask for one",
    "report.snapshots.commands": "a command loads what it runs",
    "run.analysis": "few tests make each allocation fail",
    "run.curves": "torch may never be imported",
    "run.cycles": "cycles are explained where there are some",
    "run.session": "the checks of a run load with it, unless they are off",
    "simulated": "it is loaded before torch is patched",
    "cycles.explain": "inside a collection there is no time for what is not needed there",
    "cycles.results": "inside a collection there is no time for what is not needed there",
    "cycles.watch": "what reads garbage loads when the first watch begins",
    "graphs.session": "cards are found with the optional bindings of CUDA alone",
    "trace.text": "tables of modules use the same texts",
}
#: Modules that are optional, or absent on some systems, or slow to import.
OUTSIDE = {
    *("torch", "cuda", "pynvml", "matplotlib", "jinja2", "markupsafe", "hypothesis"),
    "pytest_benchmark",
    *("fcntl", "pwd", "grp", "difflib", "dataclasses"),
}


def late(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines with imports inside functions, and what each imports."""
    seen: set[int] = set()
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom) and node.lineno not in seen:
                    seen.add(node.lineno)
                    names = [one.name for one in node.names]
                    yield from ((node.lineno, one) for one in (names if isinstance(node, ast.Import) else _from(node)))


def _from(node: ast.ImportFrom) -> list[str]:
    source = "." * node.level + (node.module or "")
    inner = [f"{source}.{one.name}" for one in node.names]
    return [one for one in inner if one in BY_NAME] or [source]


def allowed(name: str, target: str) -> bool:
    """Whether a module of some name may import another late."""
    if not target.startswith((".", "cudamem_testing")):
        return target.partition(".")[0] in OUTSIDE
    own, other = name.removeprefix("cudamem_testing."), target.removeprefix("cudamem_testing.")
    if any(own == one or own.startswith(f"{one}.") for one in LATE):
        return True
    return own in SHOWING or (own in CLEAN and other not in CLEAN)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_an_import_inside_a_function_has_a_reason(name: str) -> None:
    assert [one for one in late(tree(BY_NAME[name])) if not allowed(name, one[1])] == []


@pytest.mark.parametrize("place", sorted(LATE))
def test_each_place_that_may_is_there(place: str) -> None:
    assert any(name == f"cudamem_testing.{place}" or name.startswith(f"cudamem_testing.{place}.") for name in BY_NAME)


def test_the_rule_finds_what_it_must() -> None:
    text = "def f():\n    import json\n    from cudamem_testing.model import sizes\n    from .text import render\n"
    found = [*late(ast.parse(text))]
    assert found == [(2, "json"), (3, "cudamem_testing.model.sizes"), (4, ".text")]
    assert not any(allowed("cudamem_testing.operators.table", target) for _, target in found)
    assert allowed("cudamem_testing.report.terminal", "cudamem_testing.wording")
    assert not allowed("cudamem_testing.report.terminal", "cudamem_testing.model.records")
