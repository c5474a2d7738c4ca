"""Finds the line of source that closes a cycle, and whether the project or a library made it.

Looked up from facts once the test is over (``origins`` takes them). PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cudamem_testing.cycles.results import Cycle, Link, Origin, merged
from cudamem_testing.model.source import source_line, source_lines
from cudamem_testing.model.stacks import Locator
from cudamem_testing.show.tables import begin

_LONGEST_LINE = 80
_parse = ast.parse  # a test may replace it


@dataclass(slots=True)
class _Stores:
    """Everything that the source of a file stores, found in one walk.

    Attributes, keys and names in calls such as ``setattr``, each with lines and values; variables; arguments that are
    appended; attributes that are read without being called; the line of ``def`` by that of its first decorator.
    """

    variables: dict[str, list[_Store]] = field(default_factory=lambda: defaultdict(list))
    named: dict[str | int, list[_Store]] = field(default_factory=lambda: defaultdict(list))
    appended: list[_Store] = field(default_factory=list)
    mentioned: dict[str, list[_Store]] = field(default_factory=lambda: defaultdict(list))
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Store:
    line: int
    value: ast.AST
    scope: str
    target: ast.AST | None = None


class Sources:
    """Looks up source; parses each file once."""

    def __init__(self, locator: Locator) -> None:
        self._locator = locator
        self._files: dict[str, _Stores] = {}

    def closed_by(self, origin: Origin) -> str | None:
        """``model.py:12: self.hook = lambda: self``: the line of the project that closes a cycle.

        It is the store that made a reference of it, as far as the value that is stored can be what the reference leads
        to: in the source of the holder's class or function, else around the lines that allocated. If several lines may
        have made it, none is named. Without a store: a bound method that is passed on, the definition of a function
        that holds what it closes over, that of a generator or coroutine.
        """
        links = origin.links[::-1]
        near = [*dict.fromkeys(origin.near)]
        for sure in (True, False):
            found = [one for link in links for one in self._in_classes(link, links, sure=sure)]
            found = found or [one for link in links for one in self._in_frame(link, sure=sure)]
            if not found and sure:
                held = (one.function for one in links if one.function and not (one.running or one.frame))
                definition = next(held, None)
                if definition is not None:
                    return self._definition(*definition[:2])
            found = found or [one for link in links for one in self._nearby(link, near, sure=sure)]
            if found:
                return self._line(*_last(found))
        running = (link.function for link in links if link.function is not None and link.running)
        return next((self._definition(file, line) for file, line, _ in running), None)

    def _in_classes(self, link: Link, links: Sequence[Link], *, sure: bool) -> Iterator[tuple[str, _Store]]:
        """The store in the source of the holder's class; or where a bound method of a class is passed on."""
        if type(link.name) is str:
            for file, scope in link.classes:
                stores = [one for one in self._of(file).named.get(link.name, ()) if _is_inside(one.scope, scope)]
                chosen = _chosen(stores, link, sure=sure)
                if chosen is not None:
                    yield file, chosen
                    return
        if link.stored[0] == "method" and sure:
            for file, scope in dict.fromkeys(place for one in links for place in one.classes):
                mentions = self._of(file).mentioned.get(link.stored[1], ())
                inside = {one.line: one for one in mentions if _is_inside(one.scope, scope)}
                if len(inside) == 1:
                    yield file, inside.popitem()[1]
                    return

    def _in_frame(self, link: Link, *, sure: bool) -> Iterator[tuple[str, _Store]]:
        """The store to a local variable of a running function."""
        if link.frame and link.function is not None and type(link.name) is str:
            file, first, name = link.function
            source = self._of(file)
            spans = [
                range(node.lineno, (node.end_lineno or 0) + 1)
                for node in source.functions
                if first in (node.lineno, *(one.lineno for one in node.decorator_list[:1])) and node.name == name
            ]
            stores = source.variables.get(link.name, ())
            found = [one for one in stores if any(one.line in span for span in spans)]
            chosen = _chosen([one for one in found if one.scope.rpartition(".")[2] == name], link, sure=sure)
            if chosen is not None:
                yield file, chosen

    def _nearby(self, link: Link, near: Sequence[tuple[str, int]], *, sure: bool) -> Iterator[tuple[str, _Store]]:
        """The store around the lines that allocated: in the functions there, else anywhere in the file."""
        for file, line in near:
            source = self._of(file)
            stores = [*source.named.get(link.name, ())] if link.name is not None else []
            if type(link.name) is int:
                stores += source.appended
            around = [node for node in source.functions if node.lineno <= line <= (node.end_lineno or 0)]
            spans = [range(node.lineno, (node.end_lineno or 0) + 1) for node in reversed(around)]
            for within in (*spans, *([range(sys.maxsize)] if type(link.name) is str else [])):
                chosen = _chosen([one for one in stores if one.line in within], link, sure=sure)
                if chosen is not None:
                    yield file, chosen
                    return

    def _definition(self, file: str, first: int) -> str | None:
        """The line of ``def``: that of the code is the one of its first decorator."""
        for node in self._of(file).functions:
            if node.decorator_list and node.decorator_list[0].lineno == first:
                return self._line(file, node.lineno)
        return self._line(file, first)

    def _line(self, file: str, number: int) -> str | None:
        text = source_line(file, number)
        if not text:
            return None
        return f"{self._locator.frame((file, number, '')).file}:{number}: {begin(text, _LONGEST_LINE)}"

    def _of(self, file: str) -> _Stores:
        found = self._files.get(file)
        if found is None:
            found = self._files[file] = _Stores()
            try:
                tree = _parse("".join(source_lines(file)))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return found
            _read(tree, found)
        return found


def worded(cycles: Iterable[Cycle], sources: Sources) -> list[Cycle]:
    """Cycles with the lines that close them and with who made them; those of one signature are one."""
    found = []
    for cycle in merged([*cycles]):
        line = sources.closed_by(cycle.origin)
        found.append(replace(cycle, closed_by=line, project=cycle.origin.is_project or line is not None))
    return found


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Calls that store under a name, and calls that add to a container.
_SETTERS = ("setattr", "__setattr__", "setdefault", "add_module", "register_module", "register_parameter")
_ADDERS = ("append", "appendleft", "add", "insert", "extend")
_DISPLAYS = {
    "list": (ast.List, ast.ListComp),
    "dict": (ast.Dict, ast.DictComp),
    "set": (ast.Set, ast.SetComp),
    "tuple": (ast.Tuple,),
}


def _read(tree: ast.Module, found: _Stores) -> None:
    waiting: list[tuple[ast.AST, str, bool]] = [(tree, "", False)]
    while waiting:
        node, scope, called = waiting.pop()
        inner = scope
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            inner = f"{scope}.{node.name}".lstrip(".")
            if isinstance(node, _FUNCTIONS):
                found.functions.append(node)
        for target, value in _assigned(node):
            if isinstance(target, ast.Attribute):
                found.named[target.attr].append(_Store(target.lineno, value, scope, target.value))
            elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                key = target.slice.value
                if isinstance(key, (str, int)):
                    found.named[key].append(_Store(target.lineno, value, scope, target.value))
            elif isinstance(target, ast.Name):
                found.variables[target.id].append(_Store(target.lineno, value, scope))
        if isinstance(node, ast.Call):
            _read_call(node, scope, found)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and not called:
            found.mentioned[node.attr].append(_Store(node.lineno, node, scope))
        callee = node.func if isinstance(node, ast.Call) else None
        waiting += [(child, inner, child is callee) for child in ast.iter_child_nodes(node)]
    found.functions.sort(key=lambda node: (node.lineno, -(node.end_lineno or 0)))


def _read_call(node: ast.Call, scope: str, found: _Stores) -> None:
    name = _last_name(node.func)
    if name in _SETTERS:
        for place, argument in enumerate(node.args[:-1]):
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                found.named[argument.value].append(_Store(node.lineno, node.args[place + 1], scope))
                break
    elif name in _ADDERS and node.args:
        found.appended.append(_Store(node.lineno, node.args[-1], scope, node.func))


def _assigned(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Targets of an assignment with what each is given."""
    if isinstance(node, ast.Assign):
        pairs: list[tuple[ast.AST, ast.AST]] = [(target, node.value) for target in node.targets]
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
        pairs = [(node.target, node.value)]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        pairs = [(one.optional_vars, one.context_expr) for one in node.items if one.optional_vars is not None]
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        pairs = [(node.target, ast.Name("?"))]
    else:
        return
    for target, value in pairs:
        if not isinstance(target, (ast.Tuple, ast.List)):
            yield target, value
        elif isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            yield from zip(target.elts, value.elts, strict=True)
        else:
            yield from ((one, ast.Name("?")) for one in target.elts)


def _chosen(stores: Iterable[_Store], link: Link, *, sure: bool) -> _Store | None:
    """The only store that certainly made a reference; without ``sure``, the only one that may have made it."""
    found = {store.line: store for store in stores if _makes(store, link) == (2 if sure else 1)}
    return found.popitem()[1] if len(found) == 1 else None


def _last(found: Sequence[tuple[str, _Store]]) -> tuple[str, int]:
    """The line of the first store found, or of the last one in the same function: that one closes the cycle."""
    file, first = found[0]
    return file, max(store.line for other, store in found if (other, store.scope) == (file, first.scope))


def _makes(store: _Store, link: Link) -> int:
    """Whether the stored value is what a reference leads to: 2 for certainly, 1 for perhaps, 0 for no."""
    value, (word, name) = store.value, link.stored
    if isinstance(value, (ast.Constant, ast.JoinedStr, ast.Compare)):
        return 0
    if link.itself and isinstance(value, ast.Name) and isinstance(store.target, ast.Name):
        return 2 if value.id == store.target.id else 0
    if word == "method":
        if any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(value)):
            return 2
    elif word == "function":
        for node in ast.walk(value):
            if (isinstance(node, ast.Lambda) and name == "<lambda>") or _last_name(node) == name:
                return 2
    elif word in _DISPLAYS:
        if isinstance(value, _DISPLAYS[word]) or (isinstance(value, ast.Call) and _last_name(value.func) == word):
            return 2
    elif isinstance(value, ast.Call) and _last_name(value.func) == name:
        return 2
    literal = isinstance(value, (ast.Lambda, *(kind for kinds in _DISPLAYS.values() for kind in kinds)))
    return 0 if literal else 1


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_inside(scope: str, cls: str) -> bool:
    """Whether code is inside a class; both by qualified name."""
    cls = cls.replace("<locals>.", "")
    return scope == cls or scope.startswith(f"{cls}.")
