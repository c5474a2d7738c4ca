"""A source file and the literals in its calls.

Positions come from the syntax tree, edits are made on the decoded text, and the text is encoded again as the
file was: the bytes outside the edited literals do not change, with any encoding and line ends.

PYTEST_DONT_REWRITE
"""

import ast
import hashlib
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cudamem_testing.model.callsite import CallSite

from .errors import NotLocatedError

CHANGED = (
    "the file has changed since it was imported (expecttest's own functions rewrite it at once, for one): "
    "run the tests again"
)


@dataclass(frozen=True, slots=True)
class Literal:
    """Where one text is written: characters `start` to `end` of the decoded file."""

    file: Path
    line: int
    start: int
    end: int
    indent: str


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a text is missing: an entry `key` of the dict display at characters `start` to `end`."""

    file: Path
    line: int
    start: int
    end: int
    indent: str
    key: str


class Source:
    """A file with the content that was first read."""

    def __init__(self, path: Path) -> None:
        """Read and parse `path`.

        Raises:
            NotLocatedError: it cannot be read, decoded or parsed.
        """
        self.path = path
        try:
            raw = path.read_bytes()
            self.encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
            self.text = raw.decode(self.encoding)
            self._calls = list(_calls(ast.parse(self.text)))
        except OSError as error:
            raise NotLocatedError(f"{path} cannot be read: {error.strerror or error}") from error
        except (SyntaxError, ValueError, LookupError) as error:
            raise NotLocatedError(f"{path} cannot be parsed: {error}") from error
        if self.text.encode(self.encoding) != raw:
            raise NotLocatedError(f"{path} does not survive decoding and encoding as {self.encoding}")
        self.digest = digest(raw)
        self._starts = [0, *(end.end() for end in re.finditer(r"\r\n|\r|\n", self.text))]

    def locate(self, at: CallSite, expected: str | Mapping[str, str] | None, key: str | None) -> Literal | Entry | None:
        """Return where the expected text of a call is written, or None if the argument is no literal.

        Args:
            at: the call.
            expected: the value of the argument; the literal found must have it.
            key: selects a text of a mapping.

        Raises:
            NotLocatedError: the call cannot be distinguished from others, or the file is not what was imported.
        """
        call = self._call(at, expected)
        node = _argument(call, at)
        indent = _deeper(self._indentation(call.func.end_lineno or call.lineno))
        if isinstance(node, ast.Dict) and isinstance(expected, Mapping) and key is not None:
            found = _entry(node, key)
            if found is None and key not in expected:
                start, end = self._range(node)
                return Entry(self.path, node.lineno, start, end, indent, key)
            indent = _deeper(self._indentation(found[0].lineno)) if found else indent
            node, expected = (found[1], expected.get(key)) if found else (None, None)
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            return None
        start, end = self._range(node)
        if node.value != expected or not _evaluates(self.text[start:end], node.value):
            raise NotLocatedError(CHANGED)
        return Literal(self.path, node.lineno, start, end, indent)

    def called(self, at: CallSite, expected: object) -> str | None:
        """Return the name that a call gives to what it calls, or None if that is no name.

        Raises:
            NotLocatedError: the call cannot be distinguished from others, or the file is not what was imported.
        """
        return _name(self._call(at, expected).func)

    def column(self, offset: int) -> int:
        """Return the column of a character."""
        return offset - self._starts[bisect_right(self._starts, offset) - 1]

    def after(self, offset: int) -> str:
        """Return the rest of the line from a character on, without its end."""
        row = bisect_right(self._starts, offset)
        end = self._starts[row] if row < len(self._starts) else len(self.text)
        return self.text[offset:end].rstrip("\r\n")

    @property
    def newline(self) -> str:
        """The line end of the first line."""
        found = re.search(r"\r\n|\r|\n", self.text)
        return found[0] if found else "\n"

    def _call(self, at: CallSite, expected: object) -> ast.Call:
        if at.span is not None:
            for scope, call, _ in self._calls:
                if _is_at(call, at) and _is_scope(scope, at):
                    return call
        return self._only_call(at, expected)

    def _only_call(self, at: CallSite, expected: object) -> ast.Call:
        """Find the call by line, name and value: on Python 3.10, and in asserts that pytest < 8.3.4 rewrote."""
        near = [
            call for scope, call, statement in self._calls if _is_scope(scope, at) and _is_near(call, statement, at)
        ]
        fitting = [call for call in near if _name(call.func) == at.callee] or near
        if not fitting:
            raise NotLocatedError(CHANGED)
        if len(fitting) == 1:
            return fitting[0]
        nodes = [_argument(call, at) for call in fitting]
        same = [node for node in nodes if isinstance(node, ast.Constant) and node.value == expected]
        if len(same) != 1 or not all(isinstance(node, ast.Constant) for node in nodes):
            raise NotLocatedError(
                f"{len(fitting)} calls of {at.callee} stand on line {at.line} and this interpreter keeps no columns: "
                "put each on a separate line"
            )
        return fitting[nodes.index(same[0])]

    def _range(self, node: ast.expr) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._offset(node.lineno, node.col_offset), self._offset(end_line, end_column)

    def _offset(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        end = self._starts[line] if line < len(self._starts) else len(self.text)
        return start + len(self.text[start:end].encode("utf-8")[:column].decode("utf-8", "replace"))

    def _indentation(self, line: int) -> str:
        text = self.after(self._starts[line - 1])
        return text[: len(text) - len(text.lstrip(" \t"))]


def digest(raw: bytes) -> str:
    """Return a digest of a file's content."""
    return hashlib.sha256(raw).hexdigest()


# A function or class as (name, first line with decorators), or None for the module.
_Scope = tuple[str, int] | None


def _calls(tree: ast.Module) -> Iterator[tuple[_Scope, ast.Call, ast.stmt | None]]:
    """Yield each call with the function or class it runs in and the statement it belongs to."""
    stack: list[tuple[ast.AST, _Scope, ast.stmt | None]] = [(tree, None, None)]
    while stack:
        node, scope, statement = stack.pop()
        if isinstance(node, ast.Call):
            yield scope, node, statement
        if isinstance(node, ast.stmt):
            statement = node
        inner: list[ast.stmt] = []
        inside = scope
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            # Decorators, defaults and bases run in the scope around.
            inner = node.body
            inside = (node.name, min([node.lineno, *(one.lineno for one in node.decorator_list)]))
        bodies = set(map(id, inner))
        stack += [(child, inside if id(child) in bodies else scope, statement) for child in ast.iter_child_nodes(node)]


def _is_scope(scope: _Scope, at: CallSite) -> bool:
    """Whether a call in `scope` can be the one at `at`; lambdas and comprehensions have no name to compare."""
    return at.function.startswith("<") or scope == (at.function, at.first_line)


def _is_at(call: ast.Call, at: CallSite) -> bool:
    span, function = at.span, call.func
    if span is None or (call.end_lineno, call.end_col_offset) != (span.end_line, span.end_column):
        return False
    if (call.lineno, call.col_offset) == (span.line, span.column):
        return True
    # In a chain over several lines the compiler records a call from its method's name on.
    if not isinstance(function, ast.Attribute) or function.end_col_offset is None:
        return False
    return (function.end_lineno, function.end_col_offset - len(function.attr)) == (span.line, span.column)


def _is_near(call: ast.Call, statement: ast.stmt | None, at: CallSite) -> bool:
    if isinstance(statement, ast.Assert):  # rewritten, all of it runs at the start of the statement
        start = (statement.lineno, statement.col_offset)
        if start == ((at.span.line, at.span.column) if at.span else (at.line, statement.col_offset)):
            return True
    return at.span is None and call.lineno <= at.line <= (call.end_lineno or call.lineno)


def _name(function: ast.expr) -> str | None:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _argument(call: ast.Call, at: CallSite) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == at.argument:
            return keyword.value
    if at.position is None or at.position >= len(call.args):
        return None
    if any(isinstance(argument, ast.Starred) for argument in call.args[: at.position + 1]):
        return None
    return call.args[at.position]


def _entry(node: ast.Dict, key: str) -> tuple[ast.expr, ast.expr] | None:
    """Return key and value of the entry that counts, which is the last one."""
    for name, value in zip(reversed(node.keys), reversed(node.values), strict=True):
        if isinstance(name, ast.Constant) and name.value == key:
            return name, value
    return None


def _deeper(indentation: str) -> str:
    return indentation + ("\t" if indentation.endswith("\t") else "    ")


def _evaluates(segment: str, value: str) -> bool:
    # Positions inside an f-string are unreliable before Python 3.12.
    try:
        return bool(ast.literal_eval(f"({segment}\n)") == value)
    except (SyntaxError, ValueError):
        return False
