"""Line plots of memory over a count, with shaded spans, named moments and a named peak.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cudamem_testing.show.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Background colours of spans by name, light enough for lines in front; other spans stay white.
SHADES = {"forward": "#E3EEF7", "backward": "#FBE9DD", "optimizer": "#E0F2EC"}
MOST_NAMED = 12
"""Most moments that are named; with more, only their lines are drawn."""
NAME_ROWS = 3


@dataclass(frozen=True, slots=True)
class StepLine:
    """A series of points: a count on the x axis, bytes on the y axis; a step line."""

    name: str
    points: tuple[tuple[int, int], ...]
    thin: bool = False


@dataclass(frozen=True, slots=True)
class Shade:
    """A span of the count with a name; spans of one name have one colour."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A named position on the x axis; with ``bytes``, a point."""

    name: str
    place: int
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything in one plot."""

    title: str
    across: str
    lines: tuple[StepLine, ...]
    shades: tuple[Shade, ...] = ()
    moments: tuple[Moment, ...] = ()
    peak: Moment | None = None


def draw(picture: Picture, path: str | Path) -> Path:
    """Write the plot as PNG or SVG, by the ending of ``path``.

    Raises:
        ModuleNotFoundError: without matplotlib.
        ValueError: for another ending.
        OSError: if the file cannot be written.
    """
    figure = style.new_figure()
    axes = style.new_axes(figure, picture.title)
    largest = max((size for line in picture.lines for _, size in line.points), default=0)
    if picture.peak is not None and picture.peak.bytes is not None:
        largest = max(largest, picture.peak.bytes)
    longest = max((place for line in picture.lines for place, _ in line.points), default=0)
    top = max(largest, 1) * (1.25 if picture.moments else 1.1)  # room for names above the lines
    axes.set_ylim(0, top)
    axes.set_xlim(0, max(longest, 1))
    style.size_axis(axes.yaxis, largest)
    axes.set_xlabel(picture.across, color=style.INK, fontsize=9)
    _shade(axes, picture)
    _lines(axes, picture)
    _moments(axes, picture, top)
    if picture.peak is not None:
        _peak(axes, picture.peak, max(longest, 1))
    if picture.lines:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9, labelcolor=style.INK)
    return style.save(figure, path)


def _shade(axes: Axes, picture: Picture) -> None:
    named: set[str] = set()
    for shade in picture.shades:
        colour = SHADES.get(shade.name)
        if colour is not None:
            label = None if shade.name in named else shade.name
            axes.axvspan(shade.start, shade.end, color=colour, linewidth=0, zorder=0, label=label)
            named.add(shade.name)


def _lines(axes: Axes, picture: Picture) -> None:
    for number, line in enumerate(picture.lines):
        axes.step(
            [place for place, _ in line.points],
            [size for _, size in line.points],
            where="post",
            color=style.LINE_COLOURS[number],
            linewidth=0.7 if line.thin else 1.6,
            label=line.name,
            zorder=2 if line.thin else 3,
        )


def _moments(axes: Axes, picture: Picture, top: float) -> None:
    for number, moment in enumerate(picture.moments):
        axes.axvline(moment.place, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        if len(picture.moments) <= MOST_NAMED:
            height = top * (0.99 - 0.04 * (number % NAME_ROWS))  # neighbours are placed below each other
            axes.text(moment.place, height, f" {moment.name}", color=style.MUTED, fontsize=8, va="top")


def _peak(axes: Axes, peak: Moment, longest: int) -> None:
    size = peak.bytes or 0
    axes.plot([peak.place], [size], marker="o", markersize=5, color=style.INK, zorder=4)
    left = peak.place > longest / 2
    axes.annotate(
        peak.name,
        (peak.place, size),
        xytext=(-8 if left else 8, 4),
        textcoords="offset points",
        ha="right" if left else "left",
        va="bottom",
        color=style.INK,
        fontsize=9,
        zorder=5,
        bbox={"facecolor": style.PAPER, "alpha": 0.8, "edgecolor": "none", "pad": 1},
    )
