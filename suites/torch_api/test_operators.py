"""Schemas of operators."""

from __future__ import annotations

import pytest

from cudamem_testing.torch_api import operator_schemas


@pytest.mark.parametrize(
    ("name", "overloads"),
    [
        ("aten::sin", ["", "out"]),
        ("my annotation", []),
        ("torch::autograd::AccumulateGrad", []),
        ("a::b::c d", []),
        ("", []),
    ],
)
def test_the_overloads_of_a_name(name: str, overloads: list[str]) -> None:
    assert sorted({schema.overload_name for schema in operator_schemas(name)} & {"", "out"}) == overloads
