"""Curves: which points stay, and what bands are at each of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.curves import Band, Curve, Part, Stretch, chosen, steps_of
from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Frame, Stack

SIZES = st.lists(st.integers(0, 9), max_size=30)


@given(SIZES)
def test_steps_are_the_sizes(sizes: list[int]) -> None:
    steps = steps_of(sizes)
    assert Band("a", "project", steps).sizes(len(sizes)) == sizes
    assert len(steps) == sum(size != before for size, before in zip(sizes, [0, *sizes], strict=False))


@given(st.lists(st.integers(0, 99), min_size=1, max_size=300), st.integers(8, 60), st.data())
def test_the_highest_the_lowest_and_the_fixed_stay(totals: list[int], most: int, data: st.DataObject) -> None:
    fixed = data.draw(st.sets(st.sampled_from(range(len(totals))), max_size=most // 4))
    kept = chosen(totals.__getitem__, len(totals), most, fixed)
    assert kept == sorted({*kept})
    assert {0, len(totals) - 1, *fixed} <= {*kept}
    assert (max(totals), min(totals)) == (max(totals[one] for one in kept), min(totals[one] for one in kept))
    assert len(kept) <= max(most, len(fixed) + 4)


def curve(points: int, stacks: int) -> Curve:
    heights = [(place * 7) % 11 for place in range(points)]
    live = tuple(Part(2, 1, Stack((Frame("a.py", line, "f"),))) for line in range(stacks))
    return Curve(
        Device("cpu"),
        "line",
        tuple(range(points)),
        tuple(range(0, 5 * points, 5)),
        (Band("a", "project", steps_of(heights)), Band("b", "rest", ((0, 3),))),
        (Stretch("call", 2, points - 3),),
        heights.index(10),
        live,
        points,
    )


def test_a_small_curve_stays_as_it_is() -> None:
    small = curve(20, 3)
    assert small.thinned(20, 3) is small
    assert small.totals[:4] == [3, 10, 6, 13]


def test_a_thinned_curve_has_the_same_levels_at_its_points() -> None:
    whole = curve(500, 30)
    thin = whole.thinned(40, 10)
    assert len(thin.moments) <= 40
    assert thin.totals == [whole.totals[moment] for moment in thin.moments]
    assert thin.times == tuple(5 * moment for moment in thin.moments)
    assert thin.totals[thin.peak] == whole.totals[whole.peak] == 13
    (stretch,) = thin.stretches
    assert (thin.moments[stretch.first], thin.moments[stretch.last]) == (2, 497)
    assert thin.live[:10] == whole.live[:10]
    assert thin.live[10:] == (Part(40, 20, None, "20 more stacks", "rest"),)
