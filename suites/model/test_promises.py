"""Promises of growth are read once, and anything else is refused with what can be written."""

from __future__ import annotations

import pytest

from cudamem_testing.model.promises import Factor, Promise


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("O(1)", {}),
        ("O(n)", {"n": Factor(1)}),
        (" O( n ) ", {"n": Factor(1)}),
        ("O(n^2)", {"n": Factor(2)}),
        ("O(n**2)", {"n": Factor(2)}),
        ("O(n^1.5)", {"n": Factor(1.5)}),
        ("O(log n)", {"n": Factor(0, 1)}),
        ("O(log(n))", {"n": Factor(0, 1)}),
        ("O(sqrt(layers))", {"layers": Factor(0.5)}),
        ("O(n log n)", {"n": Factor(1, 1)}),
        ("O(n * log(n))", {"n": Factor(1, 1)}),
        ("O(n log n log n)", {"n": Factor(1, 2)}),
        ("O(n * n)", {"n": Factor(2)}),
        ("O(batch * sequence^2)", {"batch": Factor(1), "sequence": Factor(2)}),
        ("O(batch sequence)", {"batch": Factor(1), "sequence": Factor(1)}),
    ],
)
def test_promises(text: str, factors: dict[str, Factor]) -> None:
    assert Promise.parse(text).factors == factors


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n",
        "O()",
        "O(n",
        "O(n + 1)",
        "O(2 n)",
        "O(n^)",
        "O(n * )",
        "O(n^-1)",
        "O(exp(n))",
        "O(n)x",
        "O(n^2m)",
        "O(log(n)m)",
        3,
        None,
    ],
)
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a promise of growth: write O\\(1\\), O\\(n\\), O\\(n log n\\)"):
        Promise.parse(text)


@pytest.mark.parametrize(
    ("factor", "size", "value"),
    [
        (Factor(), 8, 1),
        (Factor(1), 8, 8),
        (Factor(2), 8, 64),
        (Factor(0.5), 16, 4),
        (Factor(1, 1), 8, 24),
    ],
)
def test_a_factor(factor: Factor, size: int, value: float) -> None:
    assert factor.at(size) == value
