"""A test with a million events: its report is complete, bounded, and made in seconds."""

from __future__ import annotations

import time

import pytest

from cudamem_testing.model.curves import MOST_BANDS, MOST_POINTS, MOST_STACKS
from cudamem_testing.model.sizes import format_size
from cudamem_testing.recorders.cpu import EVENTS
from cudamem_testing.report.report_files import read_json
from cudamem_testing.snapshots.replay import DROPPED
from suites.plugin.inner import MIB
from suites.report.pages import data_of

BLOCKS = 500_000
TEST = f"""
    import torch

    def block(size):
        return torch.empty(size)

    def test_long():
        early = torch.empty(2**PLACE)
        del early
        for number in range({BLOCKS - 3}):
            block(64 + number % 7)
        kept = torch.empty(2**18)
        block(2**17)
        assert number < 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("largest", [10, 20], ids=["peak among the last events", "peak among the first"])
def test_the_page_of_a_test_with_a_million_events(run_inner, pytester, figure, largest):
    began = time.process_time()
    flags = "--cudamem", "--cudamem-device=cpu", "--cudamem-html=page.html", "--cudamem-json=report.json", "-q"
    inner = run_inner({"test_it.py": TEST.replace("PLACE", str(largest))}, *flags)
    took = time.process_time() - began
    test = inner.test("test_long")
    window = test.window()
    assert (test.outcome, window.allocations) == ("failed", BLOCKS)
    assert window.peak_growth == max(4 * 2**largest, 4 * 2**18 + 4 * 2**17)
    (curve,) = test.curves
    assert EVENTS - 10 <= curve.events <= EVENTS
    late = [] if largest < 18 else [f"the peak of {format_size(window.peak)} came before the events that were kept"]
    assert list(curve.notes) == [DROPPED, *late]
    assert len(curve.moments) <= MOST_POINTS
    assert len(curve.bands) <= MOST_BANDS + 4
    assert len(curve.live) <= MOST_STACKS + 1
    assert [one.name for one in curve.stretches] == ["call", "teardown"]
    at_peak = {band.label: band.sizes(len(curve.moments))[curve.peak] for band in curve.bands}
    assert at_peak["test_it.py:11 in test_long"] == MIB
    page, report = pytester.path / "page.html", pytester.path / "report.json"
    assert data_of(page.read_text(encoding="utf-8"))["curves"]["0"][0]["events"] == curve.events
    assert read_json(report).test("test_long").curves == (curve,)
    sizes = page.stat().st_size, report.stat().st_size
    assert sizes[0] < 200_000
    assert sizes[1] < 60_000
    figure(f"a test of 1,000,000 events: {took:.1f} s in all, page {sizes[0]:,} and JSON {sizes[1]:,} bytes")
