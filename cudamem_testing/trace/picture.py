"""The picture of a timeline: its series as an area. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from cudamem_testing.model.sizes import format_size
from cudamem_testing.show.plots.area import Area, Band
from cudamem_testing.trace.series import Series

SAMPLES = 4000


def picture(series: Series, title: str = "") -> Area:
    """What is drawn of a series: its samples thinned, the peak marked with its size, regions as bands."""
    thin = series.thinned(SAMPLES)
    peak = thin.peak
    return Area(
        title or f"Memory of {series.device} by category",
        thin.times,
        thin.sizes,
        peak,
        "" if peak < 0 else f"peak {format_size(thin.totals[peak])}",
        tuple(Band(*span) for span in thin.spans),
    )
