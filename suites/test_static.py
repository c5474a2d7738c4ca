"""Reading objects without running their code: what the collector shows."""

from __future__ import annotations

import _asyncio
import ast
import gc
import subprocess
import sys
from pathlib import Path

import pytest

import cudamem_testing
from cudamem_testing import static

FREED_FUTURES = """
import asyncio, gc, sys
from cudamem_testing import static

async def wait():
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, 1)
    await asyncio.wait_for(future, 3)

for _ in range(3):
    asyncio.run(wait())
    for module in list(sys.modules.values()):
        static.referents(module)
    static.referents(*gc.get_objects())
    gc.collect()
"""


def test_what_objects_refer_to() -> None:
    first, second = [object()], {"key": object()}
    assert static.referents(first) == first
    assert static.referents(first, second) == gc.get_referents(first, second)
    assert static.referents(static, first) == gc.get_referents(static, first)
    assert static.referents() == []


def test_a_module_that_shows_what_was_freed_is_not_asked() -> None:
    kept = [object()]
    assert static.referents(_asyncio) == []
    assert static.referents(_asyncio, kept) == kept


@pytest.mark.subprocess
def test_freed_futures_are_freed_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FREED_FUTURES], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_nobody_else_asks_the_collector_what_an_object_refers_to() -> None:
    root = Path(cudamem_testing.__file__).parent
    asking = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "get_referents"
    }
    assert asking == {"static.py"}
