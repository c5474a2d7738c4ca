"""No array class is made by a call: ctypes makes one for each length, and only the garbage collector frees it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cudamem_testing

ROOT = Path(cudamem_testing.__file__).parent
MAKERS = ("create_string_buffer", "create_unicode_buffer")


def array_classes(text: str) -> Iterator[int]:
    """The lines that make an array class each time that a function runs."""
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        for node in ast.walk(function):
            made = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and is_type(node.left)
            if made or (isinstance(node, ast.Attribute) and node.attr in MAKERS):
                yield node.lineno


def is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ctypes"


def test_functions_make_no_array_class() -> None:
    files = {file: file.read_text(encoding="utf-8") for file in ROOT.rglob("*.py")}
    found = [f"{file.relative_to(ROOT)}:{line}" for file, text in files.items() for line in array_classes(text)]
    assert found == []


@pytest.mark.parametrize(
    "body", ["ctypes.create_string_buffer(8)", "(ctypes.c_uint64 * 2)()", "(lambda: (ctypes.c_char * size)())()"]
)
def test_one_in_a_function_is_found(body: str) -> None:
    assert [*array_classes(f"import ctypes\n_Two = ctypes.c_int64 * 2\ndef f(size):\n    return {body}\n")] != []
