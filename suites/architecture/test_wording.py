"""Findings hold facts: nothing but ``wording`` writes a sentence about them, and no text for people is read back."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from cudamem_testing.model import evidence, facts, outside
from suites.architecture.source import MODULES, dotted, imports, name, tree, walk

pytestmark = pytest.mark.slow  # it reads the source, and shows nothing that a user sees

#: Facts of a finding, by the names of their classes.
FACTS = {
    cls.__name__
    for home in (facts, evidence, outside)
    for cls in vars(home).values()
    if isinstance(cls, type) and cls.__module__ == home.__name__
}
#: What gives a text that people read, and names of what holds one.
TEXTS = {"title", "details", "headline", "text", "texts", "name_of", "type_word", "signature", "label"}
NAMES = {
    *("text", "title", "details", "detail", "headline", "message", "signature", "label", "holder", "allocated"),
    *("cause", "reason", "note", "notes", "said", "line", "lines", "what", "why", "where"),
}
#: What finds something in a text.
READS = {
    "startswith",
    "endswith",
    "split",
    "partition",
    "rpartition",
    "removeprefix",
    "removesuffix",
    "rindex",
    "rfind",
}
REGEX = {"match", "search", "fullmatch", "findall", "finditer", "sub", "subn"}
#: Who reads texts, by path: none of these is one that the package wrote for people.
READERS = {
    **dict.fromkeys(
        ("torch_api/", "recorders/", "simulated/", "graphs/"), "errors, names and settings of torch and CUDA"
    ),
    **dict.fromkeys(("trace/", "operators/summaries.py", "records/expected/"), "expected texts, and source"),
    **dict.fromkeys(("records/store.py", "records/baselines.py", "records/cause_text.py"), "recorded files"),
    **dict.fromkeys(("model/rules.py", "model/causes.py"), "a cause: a key, which users write rules and lines for"),
    **dict.fromkeys(
        ("model/edges.py", "model/references.py", "objects/carriers.py"), "labels of references, which are spelt there"
    ),
    **dict.fromkeys(("cycles/words.py", "wording/hints.py"), "labels of references, which have no separate name"),
    **dict.fromkeys(
        ("model/changes.py", "model/devices.py", "model/limits.py", "model/promises.py", "model/simulated_cards.py"),
        "arguments of users",
    ),
    "model/options.py": "arguments of users",
    "run/failures.py": "errors that pytest shows",
    "model/allocator_settings.py": "settings of torch's allocator",
    "wording/baselines.py": "a line of source",
    "wording/recovery.py": "a chain of references, to leave a part out",
    "wording/findings.py": "a message of a report whose facts this version does not know",
    "show/": "any text, to escape or shorten it",
}


def written(module: ast.Module) -> Iterator[int]:
    """Lines on which a finding or a fact is made with a text that is put together there, or with a sentence."""
    home = "cudamem_testing.model."
    made = {
        one.rpartition(".")[2]
        for one in imports(module)
        if one.startswith((f"{home}facts.", f"{home}evidence.", f"{home}outside."))
    }
    for node in walk(module):
        if isinstance(node, ast.Call) and dotted(node.func) in {"Finding", *(made & FACTS)}:
            for value in (*node.args, *(one.value for one in node.keywords if one.arg not in ("cause", "allocated"))):
                for part in ast.walk(value):
                    if isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and is_sentence(part.value)):
                        yield node.lineno


def is_sentence(value: object) -> bool:
    """Whether a constant is more than a name or a short word for something."""
    return isinstance(value, str) and value.count(" ") > 3


def read_back(module: ast.Module) -> Iterator[int]:
    """Lines on which a text for people is taken apart, or something is sought in it."""
    for node in walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            function = node.func
            lines = [one.value for one in node.args if isinstance(one, ast.Constant)] == ["\n"]
            if function.attr in READS and is_text(function.value) and not lines:
                yield node.lineno
            if function.attr in REGEX and any(map(is_text, node.args)):
                yield node.lineno
        elif isinstance(node, ast.Compare) and any(isinstance(one, ast.In | ast.NotIn) for one in node.ops):
            sought = isinstance(node.left, ast.Constant | ast.Call) and any(map(is_text, node.comparators))
            if (sought and isinstance(getattr(node.left, "value", ""), str)) or is_made(node.left):
                yield node.lineno


def is_made(node: ast.AST) -> bool:
    """Whether an expression makes the text of something."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TEXTS and bool(node.args)


def is_text(node: ast.AST) -> bool:
    """Whether an expression is a text for people, by how it is called."""
    while isinstance(node, ast.Subscript) or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        node = node.value if isinstance(node, ast.Subscript) else node.func.value
    if isinstance(node, ast.BoolOp):
        return any(map(is_text, node.values))
    called = getattr(node, "attr", getattr(node, "id", ""))
    return is_made(node) or (isinstance(node, ast.Attribute | ast.Name) and called in NAMES)


def test_sentences_about_findings_have_one_home() -> None:
    assert broken(written, but=("wording/",)) == {}
    assert broken(read_back, but=tuple(READERS)) == {}


def broken(rule: Callable[[ast.Module], Iterator[int]], but: tuple[str, ...]) -> dict[str, list[int]]:
    """The lines that break a rule, by file, except in some files and folders."""
    found = {name(path): [*rule(tree(path))] for path in MODULES if not name(path).startswith(but)}
    return {place: lines for place, lines in found.items() if lines}


def test_json_has_one_builder() -> None:
    """Who else makes JSON has a file format of its own."""
    own = {
        *(
            "records/baselines.py",
            "records/known.py",
            "records/store.py",
            "operators/table_files.py",
            "ranks/records.py",
        ),
        *(
            "report/report_files.py",
            "report/snapshots/documents.py",
            "report/snapshots/written.py",
            "plugin/expected_report.py",
            "plugin/collector.py",
            "simulated/kernels/convolution.py",
        ),
    }
    users = {name(path) for path in MODULES if "json" in {one.split(".")[0] for one in imports(tree(path))}}
    assert users <= own | {one for one in users if one.startswith(("show/", "trace/", "snapshots/", "recorders/"))}
    assert not [path for path in MODULES if "to_json" in path.read_text(encoding="utf-8") and name(path) not in JSON]


#: Where a report is put together and written.
JSON = {"report/schema.py", "report/report_files.py"}

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
if " not seen (" in note.partition("\\n")[0]: pass
nouns = [(*what.partition(": "), number) for what, number in every.items()]
name = fixture.owner.label.removeprefix("fixture '")
if _FINDING.match(line): pass
if "ExceptionInfo" in cycle.signature: pass
shape = name_of(tensor).partition(" on ")[0]
if not any(line.endswith(suggestion) for line in said): pass
first = finding.allocated.split(" in ")[0]
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
    assert {*read_back(ast.parse(FAULTS))} == {*range(6, 20)}
    assert [*written(ast.parse(CLEAN))] == [*read_back(ast.parse(CLEAN))] == []
