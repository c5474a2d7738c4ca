"""Findings hold facts: nothing but ``wording`` writes a sentence about them, and nothing reads one back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cudamem_testing
from cudamem_testing.model import evidence, facts
from suites.architecture.test_layout import MODULES, dotted, imports, name, tree, trees

__all__ = ["trees"]
PACKAGE = Path(cudamem_testing.__file__).parent
#: Facts of a finding, by the names of their classes.
FACTS = {
    cls.__name__
    for home in (facts, evidence)
    for cls in vars(home).values()
    if isinstance(cls, type) and cls.__module__ == home.__name__
}
#: What gives the text of a finding.
TEXTS = {"title", "details", "text", "texts"}
#: What finds something in a text.
READS = {"startswith", "endswith", "split", "partition", "rpartition", "find", "replace", "removeprefix"}
REGEX = {"re.match", "re.search", "re.fullmatch", "re.findall", "re.sub"}


def written(module: ast.Module) -> Iterator[int]:
    """Lines on which a finding or a fact is made with a text that is put together there, or with a sentence."""
    home = "cudamem_testing.model."
    made = {one.rpartition(".")[2] for one in imports(module) if one.startswith((f"{home}facts.", f"{home}evidence."))}
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and dotted(node.func) in {"Finding", *(made & FACTS)}:
            for value in (*node.args, *(one.value for one in node.keywords if one.arg not in ("cause", "allocated"))):
                for part in ast.walk(value):
                    if isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and is_sentence(part.value)):
                        yield node.lineno


def is_sentence(value: object) -> bool:
    """Whether a constant is more than a name or a short word for something."""
    return isinstance(value, str) and value.count(" ") > 3


def read_back(module: ast.Module) -> Iterator[int]:
    """Lines on which a text of a finding, a holder or a place of allocation is taken apart or looked into."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            function = node.func
            lines = [one.value for one in node.args if isinstance(one, ast.Constant)] == ["\n"]
            if isinstance(function, ast.Attribute) and function.attr in READS and is_text(function.value) and not lines:
                yield node.lineno
            if dotted(function) in REGEX and any(map(is_text, node.args)):
                yield node.lineno
        elif isinstance(node, ast.Compare):
            inside = any(isinstance(one, ast.In | ast.NotIn) for one in node.ops)
            sought = [node.left] if isinstance(node.left, ast.Call) else []
            if inside and any(map(is_text, (*sought, *node.comparators))):
                yield node.lineno


def is_text(node: ast.AST) -> bool:
    """Whether an expression is the text of a finding: what ``wording`` gives, or its holder or line."""
    if isinstance(node, ast.BoolOp):
        return any(map(is_text, node.values))
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in TEXTS and bool(node.args)
    holders = ("holder", "allocated", "message", "details", "cause")
    return isinstance(node, ast.Attribute) and node.attr in holders and dotted(node).split(".")[0] in NAMES


#: How findings are called.
NAMES = {"finding", "one", "found", "example", "error", "cause"}
#: Modules that read a cause, which is a key and the documented form of a line of ``known.jsonl``; and a chain that a
#: user's own pattern is matched with.
KEYS = {"model/rules.py", "records/known.py", "model/causes.py"}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_sentences_about_findings_have_one_home(path: Path) -> None:
    if not name(path).startswith("wording/"):
        assert [*written(tree(path))] == []
    assert name(path) in KEYS or [*read_back(tree(path))] == []


def test_json_has_one_builder() -> None:
    """Who else makes JSON has a file format of its own."""
    own = {
        *("records/baselines.py", "records/known.py", "records/lines.py", "operators/files.py"),
        *("report/files.py", "report/snapshots/documents.py", "plugin/checked.py", "plugin/collector.py"),
    }
    users = {name(path) for path in MODULES if "json" in {one.split(".")[0] for one in imports(tree(path))}}
    assert users <= own | {one for one in users if one.startswith(("show/", "trace/", "snapshots/", "recorders/"))}
    assert not [path for path in MODULES if "to_json" in path.read_text(encoding="utf-8") and name(path) not in JSON]


#: Where a report is put together and written.
JSON = {"report/schema.py", "report/files.py"}

FAULTS = """
from cudamem_testing.model.facts import Retained
Finding(kind, verdict, severity, f"cudamem: {size} leaked")
Finding(kind, verdict, severity, fact, message="a chain of references reaches it")
Retained((), 1, notes=("the search did not reach it all",))
if finding.holder.startswith("module "): pass
if (finding.holder or "").startswith("fixture "): pass
kind, verdict, place = finding.cause.split(" | ")
if text(finding) in lines: pass
if "leaked" in title(finding): pass
re.fullmatch("x", finding.holder)
"""
CLEAN = """
from cudamem_testing.model.facts import Retained
Finding(kind, verdict, severity, Retained(shown, count), cause=f"leak | {place}", allocated=f"{line}")
if finding.verdict is Verdict.FIXTURE and path.root_kind is RootKind.FIXTURE: pass
lines = text(finding).split("\\n")
if finding in others: pass
"""


def test_both_rules_find_what_they_must() -> None:
    assert [*written(ast.parse(FAULTS))] == [3, 4, 5]
    assert sorted(read_back(ast.parse(FAULTS))) == [6, 7, 8, 9, 10, 11]
    assert [*written(ast.parse(CLEAN))] == [*read_back(ast.parse(CLEAN))] == []
