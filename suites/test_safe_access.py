"""Reading objects without running their code: what the collector shows."""

from __future__ import annotations

import _asyncio
import ast
import enum
import gc
import subprocess
import sys
from pathlib import Path

import pytest

import cudamem_testing
from cudamem_testing import safe_access

FREED_FUTURES = """
import asyncio, gc, sys
from cudamem_testing import safe_access

async def wait():
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, 1)
    await asyncio.wait_for(future, 3)

for _ in range(3):
    asyncio.run(wait())
    for module in list(sys.modules.values()):
        safe_access.referents(module)
    safe_access.referents(*gc.get_objects())
    gc.collect()
"""


def test_what_objects_refer_to() -> None:
    first, second = [object()], {"key": object()}
    assert safe_access.referents(first) == first
    assert safe_access.referents(first, second) == gc.get_referents(first, second)
    assert safe_access.referents(safe_access, first) == gc.get_referents(safe_access, first)
    assert safe_access.referents() == []


def test_a_module_that_shows_what_was_freed_is_not_asked() -> None:
    kept = [object()]
    assert safe_access.referents(_asyncio) == []
    assert safe_access.referents(_asyncio, kept) == kept


@pytest.mark.subprocess
def test_freed_futures_are_freed_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FREED_FUTURES], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_only_one_module_reads_referents_from_the_collector() -> None:
    root = Path(cudamem_testing.__file__).parent
    asking = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "get_referents"
    }
    assert asking == {"safe_access.py"}


class Key:
    """Has the hash of a name and says that it equals everything."""

    asked = 0

    def __init__(self, name: str) -> None:
        self._hash = hash(name)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        Key.asked += 1
        return True


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError

    __format__ = __repr__ = __str__  # type: ignore[assignment]


class Table(dict):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise RuntimeError

    __iter__ = items = get = __getitem__ = __contains__ = __bool__ = __len__  # type: ignore[assignment]


def test_names_are_compared_with_plain_strings_only() -> None:
    namespace = {"other": 0}
    dict.__setitem__(namespace, Key("name"), 1)  # type: ignore[call-overload]
    Key.asked = 0
    assert safe_access.get(namespace, "name") is None  # type: ignore[arg-type]
    assert safe_access.get(namespace, "other") == 0  # type: ignore[arg-type]
    assert Key.asked == 0
    assert namespace.get("name") == 1  # what a look-up does
    assert safe_access.get(None, "name") is None
    assert safe_access.get(Table(name=3), "name") == 3
    assert safe_access.get(safe_access.class_dict(Key), "asked") == 1


def test_texts_of_subclasses() -> None:
    assert safe_access.plain_text(Text("name")) == "name"
    assert type(safe_access.plain_text(Text("name"))) is str
    assert safe_access.plain_text(3) == "?"
    cls = type(Text("Named"), (), {})
    cls.__name__ = Text("Other")
    assert (safe_access.class_name(cls), safe_access.type_name(cls())) == ("Other", "Other")


class Count(enum.IntEnum):
    ONE = 1


class Real(float):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = float.__hash__


@pytest.mark.parametrize(
    ("value", "plain"),
    [(Count.ONE, 1), (Real(2.5), 2.5), (Text("a"), "a"), (True, True), (None, None), (b"x", b"x"), (1 + 2j, 1 + 2j)],
)
def test_values(value: object, plain: object) -> None:
    assert safe_access.is_value(value)
    found = safe_access.plain_value(value)
    assert (found, type(found)) == (plain, type(plain))
    assert safe_access.is_plain(value) is (type(value) is type(plain))


def test_what_is_no_value() -> None:
    value = [1]
    assert not safe_access.is_value(value)
    assert safe_access.plain_value(value) is value


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [(KeyError("x"), "KeyError: 'x'"), (ValueError(), "ValueError"), (WordlessError("a"), "WordlessError")],
)
def test_the_text_of_an_error(error: Exception, text: str) -> None:
    assert safe_access.error_text(error) == text


def test_contents_of_containers() -> None:
    assert safe_access.contents(Table(a=1, b=2)) == [1, 2]
    assert safe_access.contents((1, 2)) == safe_access.contents([1, 2]) == [1, 2]
    assert safe_access.contents("ab") == safe_access.contents(3) == safe_access.contents({1}) == []


def test_true_classes() -> None:
    class Liar:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise RuntimeError

    assert not safe_access.is_a(Liar(), int)
    assert safe_access.is_one_of(Count.ONE, str, int)
    assert not safe_access.is_one_of(Liar(), str, int)
    assert safe_access.find_in_class(Count, "bit_length") is int.bit_length
    assert safe_access.find_in_class(Count, "nothing") is None
