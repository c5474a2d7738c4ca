"""Schemas of operators."""

from __future__ import annotations

import pytest

from cudamem_testing.torch_api.operators import has_kernel, operator_schemas


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


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("aten::mul", True),
        ("aten::linear", True),
        ("aten::cudnn_convolution", False),  # its out= overload is made for every device
        ("aten::_fused_dropout", False),
        ("my annotation", None),
        ("MulBackward0", None),
    ],
)
def test_what_can_run_on_a_cpu(name: str, found: bool | None) -> None:
    assert has_kernel(name, "cpu") is found
