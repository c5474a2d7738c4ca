"""Peaks that are kept, against the highest of each place."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.recorders.peaks import Peaks, peaks_of

NUMBERS = st.lists(st.integers(0, 9), min_size=3, max_size=3)


def statistics(all_: int, small: int, oversize: int) -> dict[str, Any]:
    """Split by pool, not split, and no peak at all, as torch has them."""
    return {
        "allocated_bytes": {"all": {"current": 0, "peak": all_}, "small_pool": {"current": 0, "peak": small}},
        "oversize_segments": {"current": 0, "peak": oversize},
        "num_ooms": 3,
        "host_alloc_time": {"total": 1, "max": 1},
    }


def peaks(stats: dict[str, Any]) -> tuple[int, ...]:
    pools = stats["allocated_bytes"]
    return pools["all"]["peak"], pools["small_pool"]["peak"], stats["oversize_segments"]["peak"]


@given(st.lists(NUMBERS), NUMBERS)
def test_every_peak_is_raised_to_the_highest_kept(kept: list[list[int]], now: list[int]) -> None:
    found = Peaks()
    for numbers in kept:
        found.keep(peaks_of(statistics(*numbers)))
    stats = statistics(*now)
    found.raise_in(stats)
    assert stats == statistics(*(max(column) for column in zip(*kept, now, strict=True)))
    assert peaks(stats) == tuple(max(column) for column in zip(*kept, now, strict=True))


def test_other_statistics_with_the_same_index_are_raised() -> None:
    found = Peaks()
    found.keep(peaks_of(statistics(7, 8, 9)))
    other = {"oversize_segments": {"peak": 1, "current": 1}, "allocated_bytes": 5, "more": {"all": {"peak": 1}}}
    found.raise_in(other)
    assert other == {"oversize_segments": {"peak": 9, "current": 1}, "allocated_bytes": 5, "more": {"all": {"peak": 1}}}


def test_later_places_are_kept_at_any_depth() -> None:
    found = Peaks()
    found.keep({("allocated_bytes", "all"): 5})
    found.keep(peaks_of({"by_pools": {(0, 1): {"all": {"peak": 3, "current": 1}}}, "allocated_bytes": {}}))
    found.keep({("by_pools", (0, 1), "all"): 2})
    stats = {"by_pools": {(0, 1): {"all": {"peak": 1}}, (0, 2): {}}, "allocated_bytes": {"all": {"peak": 4}}}
    assert found.exceed(stats)
    found.raise_in(stats)
    assert stats == {"by_pools": {(0, 1): {"all": {"peak": 3}}, (0, 2): {}}, "allocated_bytes": {"all": {"peak": 5}}}
    assert not found.exceed(stats)
    assert [found.above(("by_pools", (0, 1), "all"), level) for level in (2, 4)] == [3, 4]
    assert found.above(("elsewhere",), 7) == 7
