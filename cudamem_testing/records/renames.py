"""Finds renamed tests: entries without a test, and tests without an entry that are the same.

Two functions are the same if their bodies and arguments are; a fingerprint of these is kept with each entry. If the
body changed too, or none was kept, equal numbers decide, provided that only one gone entry and one new test of the file
have them. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cudamem_testing.model.baselines import Entry
from cudamem_testing.model.source import source_lines
from cudamem_testing.records.baselines import BaselineKey

BODY = "same function body"
_DIGITS = 8
Functions = dict[tuple[str, ...], ast.FunctionDef | ast.AsyncFunctionDef]


class Kept(NamedTuple):
    """An entry with the file that it is in."""

    path: Path
    key: BaselineKey
    entry: Entry


class Renamed(NamedTuple):
    """An entry that belongs to another test now; ``why`` is what is the same."""

    before: Kept
    after: Kept
    why: str


def body_of(module: Path, test: str) -> str:
    """The fingerprint of a test's function, by its id inside the module; empty where there is none to read."""
    function = _functions(str(module), tuple(source_lines(str(module)))).get(tuple(test.partition("[")[0].split("::")))
    if function is None:
        return ""
    text = "\n".join((ast.unparse(function.args), *map(ast.unparse, function.body)))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGITS]


def renames(gone: list[Kept], new: list[Kept]) -> list[Renamed]:
    """Which of the ``new`` entries are those that are ``gone``, of one file first."""
    found: list[Renamed] = []
    for why, key_of in ((BODY, _by_file_and_body), ("same numbers", _by_numbers), (BODY, _by_body)):
        done = {id(one) for pair in found for one in pair[:2]}
        left, fresh = ([one for one in some if id(one) not in done] for some in (gone, new))
        found += (Renamed(before, after, why) for before, after in _only_pairs(left, fresh, key_of))
    return found


def _only_pairs(
    gone: list[Kept], new: list[Kept], key_of: Callable[[Kept], Hashable | None]
) -> Iterator[tuple[Kept, Kept]]:
    """Those with one key, which no third one has."""
    old, fresh = (_by_key(some, key_of) for some in (gone, new))
    yield from ((before, fresh[key]) for key, before in old.items() if key in fresh)


def _by_key(some: list[Kept], key_of: Callable[[Kept], Hashable | None]) -> Mapping[Hashable, Kept]:
    keys = [key_of(one) for one in some]
    numbers = Counter(keys)
    return {key: one for key, one in zip(keys, some, strict=True) if key is not None and numbers[key] == 1}


def _by_file_and_body(one: Kept) -> Hashable | None:
    body = _by_body(one)
    return body and (one.path, body)


def _by_body(one: Kept) -> Hashable | None:
    _, bracket, parameters = one.key.test.partition("[")
    return (one.entry.body, bracket + parameters, *one.key[1:]) if one.entry.body else None


def _by_numbers(one: Kept) -> Hashable | None:
    values = tuple(sorted((metric, spread.low, spread.high) for metric, spread in one.entry.values.items()))
    _, bracket, parameters = one.key.test.partition("[")
    return (one.path, values, bracket + parameters, *one.key[1:]) if any(low for _, low, _ in values) else None


@lru_cache(maxsize=64)
def _functions(module: str, lines: tuple[str, ...]) -> Functions:
    """The functions of a module by the names of the classes around them."""
    try:
        tree = ast.parse("".join(lines), module)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: Functions = {}
    waiting: list[tuple[tuple[str, ...], ast.stmt]] = [((), one) for one in tree.body]
    while waiting:
        around, one = waiting.pop()
        if not isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        names = *around, one.name
        if isinstance(one, ast.ClassDef):
            waiting += [(names, inner) for inner in one.body]
        else:
            found[names] = one
    return found
