"""Tests and what they took, a line each."""

from __future__ import annotations

from cudamem_testing.model.changes import Spread
from cudamem_testing.records.names import Numbers, folded

MIB = 2**20


def numbers(before: int, after: int, metric: str = "requested") -> Numbers:
    return Numbers(metric, Spread.of(before), Spread.of(after))


def test_numbers() -> None:
    assert str(numbers(MIB, MIB // 2 + 1)) == "peak 1.0 MiB -> 512.0 KiB"
    assert str(numbers(2 * MIB, MIB)) == "peak 2.0 -> 1.0 MiB"
    assert str(numbers(10, 11, "allocations")) == "allocations 10 -> 11"
    assert str(Numbers("retained", Spread(MIB, 4 * MIB), Spread(0, MIB))) == "retained 1.0 to 4.0 -> 0 B to 1.0 MiB"


def test_parameters_of_a_test_are_one_line_with_a_range() -> None:
    batches = [(f"test_batch[{number}]", [numbers(number * MIB, 2 * number * MIB)]) for number in range(1, 11)]
    assert folded([*batches, ("test_one[a]", [numbers(2 * MIB, MIB)])], 5) == [
        "  test_batch[...] x 10: peak 1.0 to 10.0 -> 2.0 to 20.0 MiB",
        "  test_one[a]: peak 2.0 -> 1.0 MiB",
    ]
    assert folded([("test_a", []), ("test_b", []), ("test_c", [])], 1) == ["  test_a: other metrics", "  ... 2 more"]
