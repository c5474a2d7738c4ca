"""Objects of others are looked at through one module: look-ups that their classes could answer stand nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from suites.architecture.source import MODULES, dotted, name, tree, walk

pytestmark = pytest.mark.slow  # it reads the source, and shows nothing that a user sees

#: The one module, which reads C fields.
SAFE = "safe_access.py"
#: Built-in functions that call code of the class of what they are given, or of its metaclass.
ASKING = {"isinstance", "issubclass", "hasattr", "getattr", "vars", "dir", "callable", "hash", "repr", "format"}
#: Whose modules walk through objects of any kind.
WALKERS = ("objects/", "cycles/")
#: Where a walker asks something of its own: by file and function, with what that is.
OWN = {
    ("cycles/native.py", "getattr"): "functions of the package's library",
    ("objects/__init__.py", "getattr"): "modules of the package itself",
    ("objects/index.py", "isinstance"): "ids that the search collected",
    ("objects/names.py", "repr"): "values that are exactly of a built-in class",
    ("cycles/source.py", "isinstance"): "nodes of a syntax tree",
    ("cycles/recorded.py", "isinstance"): "frames of a recorder",
}


def classes_asked(module: ast.Module) -> Iterator[str]:
    """``type(x).__name__`` and the like: the metaclass has a say in it."""
    for node in walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call) and dotted(node.value.func) == "type":
            yield f"{node.lineno}: type(...).{node.attr}"


def kinds_asked(module: ast.Module) -> Iterator[str]:
    """``isinstance(x, torch.Tensor)``: what it is given is a value of the user's, and may lie about its class."""
    for node in walk(module):
        if isinstance(node, ast.Call) and dotted(node.func) == "isinstance":
            kinds = {dotted(part) for part in ast.walk(node.args[1])}
            if any(kind.startswith("torch.") for kind in kinds):
                yield f"{node.lineno}: {ast.unparse(node)}"


def functions_called(module: ast.Module) -> Iterator[str]:
    yield from (dotted(node.func) for node in walk(module) if isinstance(node, ast.Call))


def broken(rule: object) -> dict[str, list[str]]:
    found = {name(path): [*rule(tree(path))] for path in MODULES if name(path) != SAFE}  # type: ignore[operator]
    return {place: faults for place, faults in found.items() if faults}


def test_no_attribute_of_a_class_is_asked_for() -> None:
    assert broken(classes_asked) == {}


def test_objects_are_not_asked_whether_they_are_tensors() -> None:
    assert broken(kinds_asked) == {}


def test_whoever_walks_through_objects_asks_none_of_them() -> None:
    walkers = {name(path): tree(path) for path in MODULES if name(path).startswith(WALKERS)}
    asked = {(place, function) for place, found in walkers.items() for function in functions_called(found)}
    assert {one for one in asked if one[1] in ASKING} <= {*OWN}


def test_the_rules_find_what_they_are_for() -> None:
    parsed = ast.parse("type(obj).__name__; isinstance(x, (str, torch.Tensor)); isinstance(x, str); type(x) is str")
    assert [*classes_asked(parsed)] == ["1: type(...).__name__"]
    assert [*kinds_asked(parsed)] == ["1: isinstance(x, (str, torch.Tensor))"]
    assert sorted(functions_called(parsed)) == ["isinstance", "isinstance", "type", "type"]
