"""What a window shows of itself: a picture of its memory over time by line, and its churn. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cudamem_testing.model.churn import Churn
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.curves import Band, Curve
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.windows import Window
from cudamem_testing.show.plots import area
from cudamem_testing.show.plots.style import LINE_COLOURS, save
from cudamem_testing.snapshots.churn import churn
from cudamem_testing.snapshots.curves import curve, moments_of
from cudamem_testing.snapshots.evidence import Records

_GREYS = {"before": "#BBBBBB", "rest": "#DDDDDD", "stackless": "#999999", "rounding": "#DDDDDD"}


def draw_window(records: Records, windows: Sequence[Window], now: Counters, path: str | Path) -> Path:
    """Draw the memory of the first of some windows over time; ``now`` are the counters at this moment.

    Raises:
        ModuleNotFoundError: matplotlib is not installed (extra ``plot``).
        ValueError: for another ending, and where no events were recorded.
    """
    window = windows[0]
    replayed = records.replay(window.device)
    found = None if replayed is None else curve(replayed, windows, now, window.name)
    if found is None:
        raise ValueError(f"no picture of {window.name}: no events were recorded on {window.device}")
    return plot(found, path, f"Memory of {window.name} on {window.device} over its events")


def churn_of_window(records: Records, windows: Sequence[Window], now: Counters) -> Churn:
    """The churn of the first of some windows; ``now`` are the counters at this moment.

    Raises:
        ValueError: no events were recorded on its device.
    """
    window = windows[0]
    replayed = records.replay(window.device)
    if replayed is None or not len(replayed.recording.events):
        raise ValueError(f"the churn of {window.name} is unknown: no events were recorded on {window.device}")
    first, last = moments_of(replayed.recording, [window.opened, window.closed], now)
    return churn(replayed, first or 0, last if window.closed is not None else None)


def plot(drawn: Curve, path: str | Path, title: str) -> Path:
    """Draw memory over time into a PNG or SVG file.

    Raises:
        ModuleNotFoundError: matplotlib is not installed (extra ``plot``).
        ValueError: for another ending.
    """
    return save(area.draw(picture(drawn, title)), path)


def picture(drawn: Curve, title: str) -> area.Area:
    """What is drawn of a curve: its bands from the bottom, the peak, and its stretches as bars."""
    points = len(drawn.moments)
    ordered = sorted(drawn.bands, key=_rank)
    sizes = {band.label: band.sizes(points) for band in ordered}
    numbers = iter(range(points))
    colours = {
        band.label: _GREYS.get(band.origin) or LINE_COLOURS[next(numbers) % len(LINE_COLOURS)] for band in ordered
    }
    return area.Area(
        title,
        drawn.moments,
        sizes,
        drawn.peak,
        f"peak {format_size(drawn.totals[drawn.peak])}" if points else "",
        tuple(area.Band(one.name, drawn.moments[one.first], drawn.moments[one.last]) for one in drawn.stretches),
        colours,
        "events",
    )


def _rank(band: Band) -> int:
    """Earlier memory is lowest, then that of lines, then memory without a line."""
    return {"before": 0, "project": 1, "library": 1}.get(band.origin, 2)
