"""A function is run at several sizes, and held to what was promised of its peak."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint_sequential

from cudamem_testing import Memory
from cudamem_testing.model.scaling import Outgrown
from cudamem_testing.windows import memory as windows
from cudamem_testing.windows import scale
from suites.heap import set_aside
from suites.versions import qualified

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    with set_aside(), Memory.on("cpu") as memory:  # garbage is collected before each run
        yield memory


@pytest.fixture
def plain() -> Iterator[windows.Memory]:
    """For many runs: without records, and without collections, which programs without cycles do not need."""
    with pytest.MonkeyPatch.context() as patch, windows.Memory.on("cpu") as memory:
        patch.setattr(scale, "collect_garbage", lambda **_: True)
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
    name = "test_scale.py:{} in " + qualified("test_lines_are_those_of_the_peak.step")
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


@pytest.mark.parametrize(
    ("peaks", "enough"),
    [
        ([0, MIB], False),
        ([0, MIB, 2 * MIB], False),  # four runs at least
        ([0, 0, MIB, 2 * MIB], True),
        ([0, 0, MIB - 1, 2 * MIB], False),
        ([0, 0, 0, MIB], False),
        ([0, 0, MIB, MIB], False),
        ([5 * MIB] * 4, False),
        ([0, 0, 0, MIB, 2 * MIB], True),
        ([0, 0, MIB, 2 * MIB, 2 * MIB], False),
    ],
)
def test_two_rises_of_a_mebibyte_are_enough(peaks: list[int], enough: bool) -> None:
    ran: list[scale.Run] = [(scale.FIRST << place, peak, {}) for place, peak in enumerate(peaks)]
    assert scale._is_enough(ran) == enough


def test_a_line_counts_nothing_where_it_is_not_live(memory: Memory) -> None:
    def step(size: int) -> None:
        small = torch.empty(size * KIB, dtype=torch.uint8) if size < 256 else None
        large = torch.empty(size * size, dtype=torch.uint8) if size >= 256 else None
        del large, small

    (series,) = memory.scaling(step, [64, 128, 256]).series
    assert sorted(series.lines.values()) == [(0, 0, 64 * KIB), (64 * KIB, 128 * KIB, 0)]


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


def through(layers: int, segments: int) -> None:
    model = torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(layers)))
    x = torch.zeros(64 * KIB // 4, requires_grad=True)
    checkpoint_sequential(model, segments, x, use_reentrant=False).sum().backward()


def test_checkpointing_takes_the_root_of_the_layers(memory: Memory) -> None:
    layers = [16, 36, 64]
    memory.scaling(lambda layers: through(layers, math.isqrt(layers)), layers=layers).assert_peak("O(sqrt(layers))")
    with pytest.raises(Outgrown, match=r"peak grows like layers\^1.0\d, promised O\(sqrt\(layers\)\)"):
        memory.scaling(lambda layers: through(layers, 2), layers=layers).assert_peak("O(sqrt(layers))")


def test_a_cache_takes_the_same_for_each_token(memory: Memory) -> None:
    def generate(tokens: int) -> None:
        cache = [bytes_of(2 * KIB) for _ in range(tokens)]
        del cache

    scaling = memory.scaling(generate, tokens=[64, 128, 256])
    scaling.assert_peak("2KiB", per="token")
    with pytest.raises(Outgrown, match=r"peak grows by 2.0 KiB per token, promised 1.0 KiB"):
        scaling.assert_peak("1KiB", per="token")


def random_program(chosen: random.Random) -> tuple[Callable[[int], None], str]:
    """Tensors of random growth, some freed early; and the fastest growth among them."""
    powers = {0.0: "O(1)", 0.5: "O(sqrt(n))", 1.0: "O(n)", 1.5: "O(n^1.5)", 2.0: "O(n^2)"}
    parts = [(chosen.choice([*powers]), chosen.uniform(16, 4096), chosen.random() < 0.5) for _ in range(6)]

    def program(n: int) -> None:
        kept = []
        for power, factor, keeps in parts:
            made = bytes_of(int(factor * n**power) + 1)
            if keeps:
                kept.append(made)

    return program, powers[max(power for power, _, _ in parts)]


@pytest.mark.slow
def test_two_hundred_random_programs_do_not_fail(plain: windows.Memory) -> None:
    chosen = random.Random(28)
    for _ in range(200):
        program, promise = random_program(chosen)
        plain.scaling(program, [64, 128, 256, 512, 1024, 2048]).assert_peak(promise)


def test_the_smallest_input_at_which_a_promise_breaks(plain: windows.Memory) -> None:
    """As in docs/scaling.md."""

    def attend(n: int) -> None:
        bytes_of(n * n if n > 800 else n * KIB)  # in blocks only for short sequences

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(st.integers(16, 512))
    def linear(n: int) -> None:
        plain.scaling(attend, [n, 2 * n, 4 * n]).assert_peak("O(n)")

    with pytest.raises(Outgrown) as raised:
        linear()
    (smallest,) = [int(line.split()[0]) for line in str(raised.value).splitlines()[2:3]]
    assert smallest == 261  # (4n)^2 is below 4n KiB up to 256, and within the tolerance up to 260
