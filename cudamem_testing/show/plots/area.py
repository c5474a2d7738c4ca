"""Plots bytes over time, stacked by category, with the peak marked and stretches of time named.

What stays longest lies lowest, so that parameters are the ground and activations the hill. Memory is given and taken in
steps, and drawn in steps. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cudamem_testing.show.plots.style import (
    CATEGORY_COLOURS,
    INK,
    MUTED,
    PAPER,
    new_axes,
    new_figure,
    size_axis,
    time_axis,
)
from cudamem_testing.show.printable import elide

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND_COLOURS = ("#E8E8E8", "#D2D2D2")
"""Colours of named stretches, in turn."""
LEAST_SHARE = 0.025
"""Share of the width: shorter stretches are drawn without their name."""
_LONGEST = 48
DEEPEST = 2
"""How many levels of nested stretches are drawn."""


@dataclass(frozen=True, slots=True)
class Band:
    """A named stretch of time, in nanoseconds; ``depth`` is the number of stretches around it."""

    name: str
    start: int
    end: int
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Area:
    """Bytes at times (nanoseconds), by category; ``peak`` is the place of the sample to be marked, -1 for none.

    ``colours`` are those of bands that are no categories, in the order in which they are stacked. ``across`` is what
    runs from left to right.
    """

    title: str
    times: Sequence[int]
    sizes: Mapping[str, Sequence[int]]
    peak: int = -1
    peak_text: str = ""
    bands: tuple[Band, ...] = ()
    colours: Mapping[str, str] = field(default_factory=lambda: CATEGORY_COLOURS)
    across: Literal["time", "events"] = "time"


def draw(area: Area, width: float = 11.0, height: float = 5.5) -> Figure:
    """The picture.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    figure = new_figure(width, height)
    axes = new_axes(figure, area.title)
    shown = [name for name in area.colours if any(area.sizes.get(name, ()))]
    totals = [sum(column) for column in zip(*(area.sizes[name] for name in shown), strict=True)] if shown else []
    highest = max(totals, default=0) or 1
    longest = max([*area.times, *(band.end for band in area.bands)], default=0) or 1
    if shown:
        axes.stackplot(
            area.times,
            [area.sizes[name] for name in shown],
            colors=[area.colours[name] for name in shown],
            labels=[elide(name, _LONGEST) for name in shown],
            step="post",
            linewidth=0,
        )
        axes.step(area.times, totals, where="post", color=INK, linewidth=0.8)
    axes.set_xlim(0, longest)
    axes.set_ylim(0, highest * 1.18)
    _name_stretches(axes, area.bands, longest)
    if 0 <= area.peak < len(totals):
        _mark_peak(axes, area, totals[area.peak], longest)
    if area.across == "time":
        time_axis(axes.xaxis, longest)
    size_axis(axes.yaxis, highest)
    if shown:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles[::-1],
            labels[::-1],
            loc="outside right upper",
            frameon=False,
            fontsize=9,
            labelcolor=INK,
            handlelength=1.2,
            handleheight=1.2,
        )
    return figure


def _mark_peak(axes: Axes, area: Area, total: int, longest: int) -> None:
    time = area.times[area.peak]
    right = time > longest / 2
    axes.plot([time], [total], marker="v", markersize=7, color=INK, markerfacecolor=PAPER, zorder=5)
    axes.annotate(
        area.peak_text,
        (time, total),
        xytext=(-9 if right else 9, 7),
        textcoords="offset points",
        ha="right" if right else "left",
        va="bottom",
        color=INK,
        fontsize=9,
        fontweight="bold",
    )


def _name_stretches(axes: Axes, bands: Sequence[Band], longest: int) -> None:
    """Bars below the axis, a row for each depth, and thin lines where the outermost begin."""
    rows = min(max((band.depth for band in bands), default=-1) + 1, DEEPEST)
    place = axes.get_xaxis_transform()
    for number, band in enumerate(band for band in bands if band.depth < DEEPEST):
        bottom = -0.125 - 0.065 * band.depth
        start, end = max(band.start, 0), min(band.end, longest)
        axes.broken_barh(
            [(start, end - start)],
            (bottom, 0.055),
            transform=place,
            clip_on=False,
            color=BAND_COLOURS[number % 2],
            linewidth=0,
        )
        if band.depth == 0:
            axes.axvline(start, color=MUTED, linewidth=0.6, linestyle=(0, (2, 3)), zorder=1.5)
        if end - start >= LEAST_SHARE * longest:
            name = _fitted(band.name, (end - start) / longest)
            middle = (start + end) / 2
            axes.text(middle, bottom + 0.0275, name, transform=place, ha="center", va="center", color=INK, fontsize=8)
    axes.tick_params(axis="x", pad=4)
    if rows:
        axes.set_xlabel(" ", labelpad=10 * rows)


def _fitted(name: str, share: float) -> str:
    """The part of a name that fits into a share of the width, which is about a hundred letters."""
    most = max(int(share * 100), 1)
    return name if len(name) <= most else name[: max(most - 1, 1)] + "…"
