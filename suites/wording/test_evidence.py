"""A line of bars: what is low, high and level."""

from __future__ import annotations

import pytest

from cudamem_testing.model.evidence import Trend
from cudamem_testing.wording.evidence import lines

MIB = 2**20


@pytest.mark.parametrize(
    ("levels", "events", "line"),
    [
        ((0, 7 * MIB, 3 * MIB), 9, "over 9 events  \u2581\u2588\u2584  0 B to 7.0 MiB"),
        ((MIB, MIB), 8, "over 8 events  \u2588\u2588  1.0 MiB to 1.0 MiB"),
        (tuple(range(8)), 1000, "over 1000 events  \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588  0 B to 7 B"),
    ],
)
def test_bars(levels: tuple[int, ...], events: int, line: str) -> None:
    assert lines([Trend(levels, events)]) == [line]
