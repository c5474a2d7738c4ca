"""Growth is judged by slopes: constants, plateaus and rounding do not hide or fake it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.devices import Device
from cudamem_testing.model.promises import Promise
from cudamem_testing.model.scaling import Outgrown, Scaling, Series, TooFewSizes, exponent

KIB, MIB = 1 << 10, 1 << 20
SIZES = (256, 512, 1024, 2048, 4096)
#: Promises from the slowest to the fastest growth.
LADDER = ("O(1)", "O(log n)", "O(sqrt(n))", "O(n)", "O(n log n)", "O(n^1.5)", "O(n^2)", "O(n^2 log n)", "O(n^3)")


def series(function: Callable[[int], float], sizes: tuple[int, ...] = SIZES) -> Series:
    """What a card would count: each number is rounded up to 512 bytes."""
    return Series("n", sizes, tuple(math.ceil(function(size) / 512) * 512 for size in sizes))


def outgrows(one: Series, promise: str) -> bool:
    return one.outgrows(Promise.parse(promise).of("n"))


#: Functions with the least promise that they keep.
KNOWN: dict[str, tuple[Callable[[int], float], str]] = {
    "constant": (lambda n: 4 * MIB, "O(1)"),
    "constant and noise of rounding": (lambda n: 4 * MIB + n % 512, "O(1)"),
    "falls": (lambda n: 8 * MIB - 64 * n, "O(1)"),
    "log": (lambda n: MIB * math.log2(n), "O(log n)"),
    "log and constant": (lambda n: 64 * MIB + MIB * math.log2(n), "O(log n)"),
    "sqrt": (lambda n: MIB * math.sqrt(n), "O(sqrt(n))"),
    "sqrt and constant": (lambda n: 100 * MIB + MIB * math.sqrt(n), "O(sqrt(n))"),
    "linear": (lambda n: 4 * KIB * n, "O(n)"),
    "linear, small": (lambda n: 64 * n, "O(n)"),
    "linear and constant": (lambda n: 100 * MIB + 4 * KIB * n, "O(n)"),
    "linear and sqrt": (lambda n: 4 * KIB * n + 64 * KIB * math.sqrt(n), "O(n)"),
    "linear and log": (lambda n: 4 * KIB * n + MIB * math.log2(n), "O(n)"),
    "linear after a plateau": (lambda n: max(2 * MIB, 4 * KIB * n), "O(n)"),
    "linear, in pieces of 128": (lambda n: math.ceil(n / 128) * 128 * KIB, "O(n)"),
    "n log n": (lambda n: KIB * n * math.log2(n), "O(n log n)"),
    "n log n and constant": (lambda n: 10 * MIB + KIB * n * math.log2(n), "O(n log n)"),
    "n log n and linear": (lambda n: 2 * KIB * n + KIB * n * math.log2(n), "O(n log n)"),
    "n^1.2": (lambda n: KIB * n**1.2, "O(n^1.5)"),
    "n^1.5": (lambda n: KIB * n**1.5, "O(n^1.5)"),
    "n^1.5 and constant": (lambda n: 50 * MIB + KIB * n**1.5, "O(n^1.5)"),
    "quadratic": (lambda n: 4 * n**2, "O(n^2)"),
    "quadratic and linear": (lambda n: 4 * n**2 + KIB * n, "O(n^2)"),
    "quadratic and constant": (lambda n: 32 * MIB + 4 * n**2, "O(n^2)"),
    "quadratic, causal": (lambda n: 4 * n * (n + 1) // 2, "O(n^2)"),
    "two buffers of n^2": (lambda n: 8 * n**2, "O(n^2)"),
    "n^1.97": (lambda n: 4 * n**1.97, "O(n^2)"),
    "n^2 log n": (lambda n: 4 * n**2 * math.log2(n), "O(n^2 log n)"),
    "n^2.5": (lambda n: 4 * n**2.5, "O(n^3)"),
    "cubic": (lambda n: n**3 / 64, "O(n^3)"),
    "cubic and quadratic": (lambda n: n**3 / 64 + 4 * n**2, "O(n^3)"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_thirty_functions_behave_as_declared(name: str) -> None:
    function, least = KNOWN[name]
    kept = [promise for promise in LADDER if not outgrows(series(function), promise)]
    assert kept == [*LADDER[LADDER.index(least) :]]


def test_there_are_thirty() -> None:
    assert len(KNOWN) == 30


@given(
    st.integers(0, 1 << 32),
    st.integers(64, 1 << 20),
    st.sampled_from([(256, 512, 1024), (100, 200, 300, 400), (7, 70, 700, 7000), SIZES]),
)
def test_what_grows_as_promised_never_fails(constant: int, factor: int, sizes: tuple[int, ...]) -> None:
    for promise in LADDER[1:]:
        value = Promise.parse(promise).of("n").at
        assert not outgrows(series(lambda n, value=value: constant + factor * value(n), sizes), promise)


def test_a_plateau_before_few_sizes_decides_nothing() -> None:
    one = series(lambda n: max(3 * MIB, 4 * KIB * n), (256, 512, 1024))
    with pytest.raises(TooFewSizes) as raised:
        outgrows(one, "O(n)")
    assert str(raised.value) == (
        "up to n=512 another part of the memory is larger than what grows: add n=2048, or leave out the smallest sizes"
    )


@pytest.mark.parametrize(("block", "sizes"), [(64, (100, 150, 225, 340)), (100, (100, 101, 250, 301))])
def test_memory_in_blocks_is_not_judged_by_sizes_between_them(block: int, sizes: tuple[int, ...]) -> None:
    def padded(size: int) -> int:
        return math.ceil(size / block) * block * KIB

    with pytest.raises(TooFewSizes) as raised:
        outgrows(series(padded, sizes), "O(n)")
    assert str(raised.value) == (
        f"memory grows in steps: it rose no faster up to n={sizes[-1]} than at smaller sizes, and slower in between: "
        f"add n={sizes[-1] * 2}, or sizes that are multiples of a step"
    )
    multiples = tuple(block * 2**place for place in range(4))
    assert not outgrows(series(padded, multiples), "O(n)")
    assert outgrows(series(lambda size: padded(size) * size, multiples), "O(n)")


def test_growth_by_a_logarithm_is_named() -> None:
    one = series(lambda n: MIB * math.log2(n))
    assert Scaling(Device("cpu"), (one,)).failure(one, "O(1)")[0] == "peak grows like log n, promised O(1) (cpu)"


@pytest.mark.parametrize(("flat", "rising"), [(1, 2), (2, 2), (3, 2)])
def test_a_plateau_counts_until_three_rises_follow(flat: int, rising: int) -> None:
    sizes = [2**place for place in range(flat + rising + 2)]
    numbers = [MIB] * (flat + 1) + [MIB * 4**place for place in range(1, rising + 2)]
    assert outgrows(Series("n", tuple(sizes), tuple(numbers)), "O(n)")
    with pytest.raises(TooFewSizes):
        outgrows(Series("n", tuple(sizes[:-1]), tuple(numbers[:-1])), "O(n)")


def test_what_no_longer_rises_outgrows_nothing() -> None:
    assert not outgrows(Series("n", SIZES, (MIB, 2 * MIB, 4 * MIB, 8 * MIB, 8 * MIB)), "O(1)")


@pytest.mark.parametrize(("last", "more"), [(100.1, False), (102.9, False), (103.1, True), (200, True)])
def test_constant_memory_may_rise_a_little_at_the_end(last: float, more: bool) -> None:
    for before in ((100 * MIB,), (1000 * MIB,) * 3):
        one = Series("n", SIZES[: len(before) + 2], (*before, 100 * MIB, round(last * MIB)))
        assert outgrows(one, "O(1)") is more


@pytest.mark.parametrize(("power", "sizes"), [(p, s) for p in (0.5, 1.0, 1.97, 3.0) for s in ((1, 2, 4), (10, 15, 40))])
def test_an_exponent_leaves_the_constant_out(power: float, sizes: tuple[int, ...]) -> None:
    numbers = [round(10**15 + 10**12 * size**power) for size in sizes]
    assert exponent(sizes, numbers) == pytest.approx(power, abs=1e-3)
    assert exponent(sizes, [5, 5, 5]) is None


def test_the_exponent_of_a_logarithm_is_0() -> None:
    assert exponent((2, 4, 32), (10**6, 2 * 10**6, 5 * 10**6)) == pytest.approx(0, abs=1e-3)
    assert [exponent((1, 2, 4), numbers) for numbers in ((9, 5, 8), (5, 8, 8), (5, 5, 8))] == [None] * 3


def test_a_table_has_the_power_of_each_three_sizes() -> None:
    one = Series("n", (1, 2, 4, 8, 16), (1 * KIB, 2 * KIB, 4 * KIB, 16 * KIB, 64 * KIB))
    powers = [line.split()[3:] for line in Scaling(Device("cpu"), (one,)).table(one).lines()[1:]]
    assert powers == [[], [], ["n^1.00"], ["n^2.58"], ["n^2.00"]]


def test_a_failure_names_the_power_and_the_lines() -> None:
    one = Series(
        "n",
        (256, 512, 1024),
        (MIB, 4 * MIB, 16 * MIB),
        lines={
            "model.py:8 in attend": (MIB // 2, 3 * MIB, 15 * MIB),
            "model.py:9 in attend": (MIB // 2, MIB, MIB),
            "model.py:10 in attend": (0, 5, 6),
        },
    )
    with pytest.raises(Outgrown) as raised:
        Scaling(Device("cpu"), (one,), notes=("sizes of n were chosen: why",)).assert_peak("O(n)")
    assert str(raised.value).splitlines() == [
        "cudamem: peak grows like n^2.00, promised O(n) (cpu)",
        "      n      peak  grew like",
        "    256   1.0 MiB",
        "    512   4.0 MiB",
        "   1024  16.0 MiB     n^2.00",
        "   fit: n^2.00 and a constant part; n^2.00 without one",
        "   grows fastest:",
        "      model.py:8 in attend  3.0 MiB at n=512, 15.0 MiB at n=1024",
        "      model.py:10 in attend  5 B at n=512, 6 B at n=1024",
        "   note: sizes of n were chosen: why",
    ]


def test_variables_are_judged_apart() -> None:
    batch = Series("batch", (1, 2, 4), (MIB, 2 * MIB, 4 * MIB), {"sequence": 128})
    sequence = Series("sequence", (128, 256, 512), (MIB, 4 * MIB, 16 * MIB), {"batch": 1})
    both = Scaling(Device("cpu"), (batch, sequence))
    both.assert_peak("O(batch * sequence^2)")
    with pytest.raises(Outgrown, match=r"peak grows like sequence\^2.00, promised O\(batch \* sequence\)"):
        both.assert_peak("O(batch * sequence)")
    with pytest.raises(Outgrown, match=r"peak grows like batch\^1.00, promised O\(sequence\^2\)"):
        both.assert_peak("O(sequence^2)")
    with pytest.raises(ValueError, match=r"O\(layers\) names layers, but the run varied batch, sequence"):
        both.assert_peak("O(layers)")
    assert str(both).splitlines()[0] == "cpu at sequence=128"


def test_a_fit_without_a_constant_part_is_lower() -> None:
    one = series(lambda n: 64 * MIB + 4 * KIB * n)
    assert one.exponent == pytest.approx(1.0, abs=0.01)
    assert one.exponent_of_all == pytest.approx(0.15, abs=0.01)
    assert series(lambda n: 0).exponent_of_all is None


def test_memory_per_unit() -> None:
    cache = Series("tokens", (64, 128, 256), (6 * MIB, 12 * MIB, 24 * MIB))
    scores = Series("tokens", (64, 128, 256), (MIB, 4 * MIB, 16 * MIB))
    assert Scaling(Device("cpu"), (cache,)).assert_peak("O(1)", per="token") is None
    assert Scaling(Device("cpu"), (cache,)).assert_peak("96KiB", per="token") is None
    with pytest.raises(Outgrown, match=r"^cudamem: peak grows like tokens\^2.00, promised O\(1\) per token \(cpu\)"):
        Scaling(Device("cpu"), (scores,)).assert_peak("O(1)", per="token")
    with pytest.raises(Outgrown, match=r"^cudamem: peak grows by 96.0 KiB per token, promised 95.0 KiB \(cpu\)"):
        Scaling(Device("cpu"), (cache,)).assert_peak("95KiB", per="token")


def test_any_unit_names_the_only_variable() -> None:
    unnamed = Scaling(Device("cpu"), (Series("n", (1, 2, 4), (MIB, 2 * MIB, 4 * MIB)),))
    unnamed.assert_peak("O(1)", per="token")
    with pytest.raises(ValueError, match="per='token': the run varied batch"):
        Scaling(Device("cpu"), (Series("batch", (1, 2, 4), (1, 2, 4)),)).assert_peak("O(1)", per="token")


def test_a_plateau_is_constant() -> None:
    steps = (1, 2, 4, 8, 16)
    plateau = Series("steps", steps, (MIB, 2 * MIB, 4 * MIB, 4 * MIB, 4 * MIB))
    assert not outgrows(plateau, "O(1)")
    assert outgrows(Series("steps", steps, (MIB, 2 * MIB, 4 * MIB, 4 * MIB, 5 * MIB)), "O(1)")
    assert outgrows(Series("steps", steps, (MIB, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB)), "O(1)")
