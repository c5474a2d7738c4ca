"""Growth and plateaus in the levels of known programs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.devices import Device
from cudamem_testing.model.growth import Grew, Growth, rise

CPU = Device("cpu")


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([0, 0, 0, 0, 0], 0),
        ([0, 10, 20, 30, 40, 50, 60], 10),
        ([0, 10, 20, 30, 30, 30, 30], 0),  # a cache that is full
        ([0, 0, 0, 0, 0, 0, 100], 0),  # one rise says nothing
        ([0, 0, 0, 0, 50, 50, 100], 33),  # mean of the second half
        ([60, 50, 40, 30, 20, 10, 0], 0),
        ([0, 90, 20, 110, 40, 130, 60, 150, 80, 170, 100], 8),  # what comes and goes does not count
        ([0, 5, 0, 5, 0, 5, 0, 5, 0], 0),
        ([0, 0, 10, 10, 20, 20, 30, 30, 40], 5),  # every second step
        ([9, 1, 8, 4, 7, 2, 6, 3, 5, 8], 0),  # shapes that vary
        ([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6], 0),  # emptied every seventh step
    ],
)
def test_rise(levels: list[int], expected: int) -> None:
    assert rise(levels) == expected


@given(st.integers(1, 10_000), st.integers(4, 40), st.integers(0, 2**32))
def test_constant_growth_is_found_to_the_byte(per_step: int, steps: int, seed: int) -> None:
    """Temporary memory on top does not matter, as long as the level is at its floor now and then."""
    dice = random.Random(seed)
    levels = [place * per_step + dice.choice([0, 0, dice.randrange(per_step)]) for place in range(steps + 1)]
    middle = (steps + 1) // 2
    levels[middle] = middle * per_step
    levels[-1] = steps * per_step
    assert rise(levels) == per_step


@given(st.lists(st.integers(0, 1000), min_size=5, max_size=40), st.integers(0, 1000))
def test_a_level_that_returns_to_its_floor_is_a_plateau(noise: list[int], floor: int) -> None:
    assert rise([floor + one for one in noise] + [floor]) == 0


def test_shapes_that_vary_are_no_growth() -> None:
    """Of 2,000 programs whose every step keeps one block of another size at most four seem to grow; with a fifth of the
    largest kept by each step all do.
    """
    dice = random.Random(7)
    programs = [[dice.randrange(1000) for _ in range(21)] for _ in range(2000)]
    assert sum(1 for levels in programs if rise(levels)) <= 4
    growing = [[place * 200 + level for place, level in enumerate(levels)] for levels in programs]
    assert all(map(rise, growing))


@given(st.lists(st.integers(0, 1000), min_size=5, max_size=40))
def test_a_constant_changes_nothing(levels: list[int]) -> None:
    assert rise([one + 12345 for one in levels]) == rise(levels)


def test_what_a_collection_frees_is_no_growth() -> None:
    levels = tuple(range(0, 110, 10))
    assert Growth(CPU, levels).grows
    assert Growth(CPU, levels, collected=49).grows
    assert not Growth(CPU, levels, collected=50).grows


def test_texts() -> None:
    plateau = Growth(CPU, (0, 1024, 1024, 1024, 1024))
    assert str(plateau) == "plateau: 1.0 KiB over 4 steps (cpu)"
    assert str(Growth(CPU, (1024, 0, 0, 0, 0))) == "plateau: -1.0 KiB over 4 steps (cpu)"
    garbage = Growth(CPU, tuple(range(0, 11 * 1024, 1024)), collected=10 * 1024)
    assert str(garbage) == "only garbage that a collection freed: 10.0 KiB over 10 steps (cpu)"
    sizes = tuple((512 * one, 2) for one in range(7, 0, -1))
    grown = Growth(CPU, tuple(range(0, 11 * 1024, 1024)), sizes=sizes, evidence=("   line of evidence",))
    assert str(grown).splitlines() == [
        "cudamem: grows by 1.0 KiB per step: 10.0 KiB over 10 steps (cpu)",
        "   2 x 3.5 KiB",
        "   2 x 3.0 KiB",
        "   2 x 2.5 KiB",
        "   2 x 2.0 KiB",
        "   2 x 1.5 KiB",
        "   line of evidence",
    ]


def test_assertion() -> None:
    Growth(CPU, (0, 10, 10, 10, 10)).assert_plateau()
    with pytest.raises(Grew, match=r"grows by 10 B per step"):
        Growth(CPU, (0, 10, 20, 30, 40)).assert_plateau()
