"""A function is run at several sizes, and held to what was promised of its peak."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cudamem_testing import Memory
from cudamem_testing.model.scaling import Outgrown
from cudamem_testing.windows import scale
from suites.heap import set_aside

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    with set_aside(), Memory.on("cpu") as memory:  # garbage is collected before each run
        yield memory


def bytes_of(number: int) -> torch.Tensor:
    return torch.empty(number, dtype=torch.uint8)


def test_sizes_are_passed_and_measured(memory: Memory) -> None:
    passed: list[int] = []

    def step(size: int) -> torch.Tensor:
        passed.append(size)
        return bytes_of(size * KIB)

    scaling = memory.scaling(step, [64, 128, 256])
    assert passed == [64, 64, 128, 256]  # the first run fills caches
    (series,) = scaling.series
    assert (series.variable, series.sizes, series.bytes) == ("n", (64, 128, 256), (64 * KIB, 128 * KIB, 256 * KIB))
    scaling.assert_peak("O(n)")
    with pytest.raises(Outgrown, match=r"grows like n\^1.00, promised O\(sqrt\(n\)\) \(cpu\)"):
        scaling.assert_peak("O(sqrt(n))")


def test_lines_are_those_of_the_peak(memory: Memory) -> None:
    def step(size: int) -> None:
        small = torch.empty(size * KIB, dtype=torch.uint8)
        large = torch.empty(size * size, dtype=torch.uint8)
        del large, small

    first = step.__code__.co_firstlineno
    (series,) = memory.scaling(step, [128, 256, 512]).series
    name = "test_scale.py:{} in test_lines_are_those_of_the_peak.step"
    found = {line.rpartition("/")[2]: numbers for line, numbers in series.lines.items()}
    assert found == {
        name.format(first + 1): (128 * KIB, 256 * KIB, 512 * KIB),
        name.format(first + 2): (128**2, 256**2, 512**2),
    }


def test_what_a_run_leaves_is_not_counted_in_the_next(memory: Memory) -> None:
    kept: list[torch.Tensor] = []
    (series,) = memory.scaling(lambda size: kept.append(bytes_of(size * KIB)), [64, 128, 256]).series
    assert series.bytes == (64 * KIB, 128 * KIB, 256 * KIB)


def test_variables_are_varied_one_at_a_time(memory: Memory) -> None:
    passed: list[tuple[int, int]] = []

    def step(batch: int, sequence: int) -> torch.Tensor:
        passed.append((batch, sequence))
        return bytes_of(batch * sequence**2)

    scaling = memory.scaling(step, batch=[4, 8, 16], sequence=[64, 128, 256])
    assert passed == [(4, 64), (4, 64), (8, 64), (16, 64), (4, 64), (4, 128), (4, 256)]
    assert [(one.variable, one.fixed) for one in scaling.series] == [
        ("batch", {"sequence": 64}),
        ("sequence", {"batch": 4}),
    ]
    scaling.assert_peak("O(batch * sequence^2)")


def test_sizes_are_chosen(memory: Memory) -> None:
    scaling = memory.scaling(lambda n: bytes_of(n * 8 * KIB))
    assert scaling.series[0].sizes == (64, 128, 256, 512)
    assert scaling.notes == ("sizes of n were chosen: 64 to 512, where each doubling adds 1.0 MiB or more",)


def test_sizes_are_chosen_within_a_time(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "MOST_SECONDS", 0.0)
    scaling = memory.scaling(lambda n: None)
    assert scaling.series[0].sizes == (64, 128, 256)
    assert scaling.notes == ("sizes of n were chosen: 64 to 256, all that were tried in 0 s",)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([1, 2], "n=[1, 2]: write at least 3 sizes, whole numbers from 1"),
        ([0, 1, 2], "n=[0, 1, 2]: write at least 3 sizes, whole numbers from 1"),
        ([1, 2.0, 3], "n=[1, 2.0, 3]: write at least 3 sizes, whole numbers from 1"),
        ([1, 3, 2], "n=[1, 3, 2]: write sizes that rise"),
        ([1, 1, 2], "n=[1, 1, 2]: write sizes that rise"),
    ],
)
def test_wrong_sizes(memory: Memory, sizes: list[int], said: str) -> None:
    with pytest.raises(ValueError) as raised:
        memory.scaling(lambda n: None, sizes)
    assert str(raised.value) == said


def test_sizes_and_variables_exclude_each_other(memory: Memory) -> None:
    with pytest.raises(ValueError, match="sizes and batch were given: write sizes=, or variables by name"):
        memory.scaling(lambda n: None, [1, 2, 3], batch=[1, 2, 3])


def test_an_error_of_the_function_passes(memory: Memory) -> None:
    def fails(size: int) -> None:
        if size == 4:
            raise KeyError(size)

    with pytest.raises(KeyError):
        memory.scaling(fails, [1, 2, 4])
    memory.scaling(lambda size: None, [1, 2, 4]).assert_peak("O(1)")
