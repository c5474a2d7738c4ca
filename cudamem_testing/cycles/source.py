"""Where the source of a cycle's objects is, whether that is the project, and which line closes the cycle.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ast
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cudamem_testing import static
from cudamem_testing.cycles.words import Hop
from cudamem_testing.model.source import source_line, source_lines
from cudamem_testing.model.stacks import Locator
from cudamem_testing.objects import Kind
from cudamem_testing.show.tables import begin

#: The class of pytest that keeps a traceback, and with it the frame in whose local variable it stands.
_HARNESS = ("_pytest.", "pluggy.", "unittest.", "mock.", "hypothesis.")
_LONGEST_LINE = 80
_parse = ast.parse  # a test may replace it
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Keyed by id, because a lookup by class would ask a hostile metaclass for its hash; these classes are immortal.
_CODE_FIELDS = {
    id(types.FunctionType): "__code__",
    id(types.FrameType): "f_code",
    id(types.GeneratorType): "gi_code",
    id(types.CoroutineType): "cr_code",
    id(types.AsyncGeneratorType): "ag_code",
}
#: Generators and coroutines.
_RUNNING = frozenset(_CODE_FIELDS) - {id(types.FunctionType), id(types.FrameType)}


class Sources:
    """Looks up source for one explanation; a parsed file is kept as long as this object."""

    def __init__(self, locator: Locator) -> None:
        self._locator = locator
        self._trees: dict[str, ast.Module | None] = {}

    def is_project(self, obj: object) -> bool:
        """Whether an object is a function, frame, class or instance of one that is defined in the project."""
        return any(map(self._is_own, _definitions(obj)))

    def closed_by(self, steps: Sequence[Hop], near: Iterable[tuple[str, int]] = ()) -> str | None:
        """``model.py:12: self.hook = lambda: self``: the line that closes a cycle, where it is the project's.

        An assignment to an attribute of the cycle in the source of its class, else the definition of a function in
        the cycle, else such an assignment in one of the files ``near``, in the function around the line given with it
        if there is one, else the definition of a generator or coroutine in the cycle.
        """
        named = (Kind.ATTRIBUTE, Kind.SUBMODULE)
        attributes = [step for step in reversed(steps) if step.reference.kind in named]
        for step in attributes:
            cls: type = step.holder if static.is_a(step.holder, type) else type(step.holder)
            cls = _written(cls)
            if static.is_heap_type(cls) and self.is_project(cls):
                name = static.class_qualname(cls).rpartition(".")[2]
                line = self._assignment(_class_file(cls), step.reference.text[1:], name)
                if line is not None:
                    return line
        for function in (step.holder for step in steps if type(step.holder) is types.FunctionType):
            code = function.__code__
            if self.is_project(function):
                return self._definition(code)
        for file, number in near:
            for step in attributes:
                line = self._assignment(file, step.reference.text[1:], None, number)
                if line is not None:
                    return line
        running = (code for step in steps if id(type(step.holder)) in _RUNNING for code in _codes(step.holder))
        return next((self._definition(code) for code in running if self._is_own(code)), None)

    def _assignment(self, file: str, attribute: str, class_name: str | None, number: int = 0) -> str | None:
        tree = self._tree(file)
        if tree is None or not attribute.isidentifier():
            return None
        if class_name is None:
            scopes: list[ast.AST] = [*_functions_around(tree, number), tree]
        else:
            scopes = [one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == class_name]
        for scope in scopes:
            for node in ast.walk(scope):
                for target in _targets(node):
                    if isinstance(target, ast.Attribute) and target.attr == attribute:
                        return self._line(file, target.lineno)
        return None

    def _definition(self, code: types.CodeType) -> str | None:
        """The line of ``def``: that of the code is the one of its first decorator."""
        first = code.co_firstlineno
        for node in ast.walk(self._tree(code.co_filename) or ast.Module([], [])):
            if isinstance(node, _FUNCTIONS) and node.decorator_list and node.decorator_list[0].lineno == first:
                return self._line(code.co_filename, node.lineno)
        return self._line(code.co_filename, first)

    def _is_own(self, definition: types.CodeType | type) -> bool:
        return self._locator.frame((_file_of(definition), 0, "")).origin == "project"

    def _line(self, file: str, number: int) -> str | None:
        text = source_line(file, number)
        if not text:
            return None
        return f"{self._locator.frame((file, number, '')).file}:{number}: {begin(text, _LONGEST_LINE)}"

    def _tree(self, file: str) -> ast.Module | None:
        if file not in self._trees:
            try:
                self._trees[file] = _parse("".join(source_lines(file)))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._trees[file] = None
        return self._trees[file]


def is_harness(obj: object) -> bool:
    """Whether an object belongs to the test harness; ``autospec`` of a mock makes functions, which refer to it."""
    if type(obj) is types.FrameType:
        return str(obj.f_globals.get("__name__")).startswith(_HARNESS)
    if type(obj) is types.FunctionType:
        obj = obj.__dict__.get("mock")
    cls = type(obj)
    return static.is_heap_type(cls) and static.class_module(cls).startswith(_HARNESS)


def _functions_around(tree: ast.Module, number: int) -> list[ast.AST]:
    """The functions around a line, the innermost first."""
    found = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    return [node for node in reversed(found) if node.lineno <= number <= (node.end_lineno or 0)]


def _targets(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, (ast.Tuple, ast.List)) else (target,)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        yield node.target


def _definitions(obj: Any) -> Iterator[types.CodeType | type]:
    yield from _codes(obj)
    cls: type = obj if static.is_a(obj, type) else type(obj)
    if static.is_heap_type(cls):
        yield _written(cls)


def _written(cls: type) -> type:
    """The class that somebody wrote: for the context of a custom autograd function, that function."""
    found: Any = static.class_dict(cls).get("_forward_cls")
    return cls if found is None or not static.is_a(found, type) else found


def _codes(obj: Any) -> Iterator[types.CodeType]:
    if type(obj) is types.MethodType:
        obj = obj.__func__
    elif type(obj) is functools.partial:
        obj = obj.func
    name = _CODE_FIELDS.get(id(type(obj)))
    if name is not None:
        yield object.__getattribute__(obj, name)


def _file_of(definition: types.CodeType | type) -> str:
    return definition.co_filename if type(definition) is types.CodeType else _class_file(definition)


def _class_file(cls: type) -> str:
    """The file of a class's module; a module that is gone counts as library."""
    module = sys.modules.get(static.class_module(cls))
    found = None if module is None else (static.module_dict(module) or {}).get("__file__")
    return found if type(found) is str else ""
