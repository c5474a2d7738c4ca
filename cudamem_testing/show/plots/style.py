"""Shared parts of all plots: colours, axes, and writing to a file.

A plot is a :class:`matplotlib.figure.Figure` that is created, drawn on and saved; ``pyplot`` and its settings for the
whole process are not used. Every colour is set here, so a style set elsewhere has no effect.

The colours are those of Okabe and Ito, "Color Universal Design" (2008), which people with any of the common kinds of
colour blindness can tell apart. A category has the same colour in every plot and page; neighbours in a stack differ in
lightness too, so that they differ in greyscale. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cudamem_testing.show.atomic_files import replace_file
from cudamem_testing.show.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#222222", "#666666", "#DDDDDD", "#FFFFFF"
"""Text and frames, secondary elements, grid lines, background."""
LINE_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#F0E442")
"""For series without a category, in order of use."""
CATEGORY_COLOURS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "PARAMETER": "#0072B2",
        "OPTIMIZER_STATE": "#56B4E9",
        "GRADIENT": "#009E73",
        "INPUT": "#F0E442",
        "ACTIVATION": "#E69F00",
        "AUTOGRAD_DETAIL": "#D55E00",
        "TEMPORARY": "#CC79A7",
        "unknown": "#BBBBBB",
    }
)
"""By category, in stack order from the bottom: long-lived memory first."""
FORMATS: Final = (".png", ".svg")
DOTS_PER_INCH: Final = 150

_SIZES = tuple((1024**power, unit) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB")))
_TIMES = ((1, "ns"), (10**3, "µs"), (10**6, "ms"), (10**9, "s"))


def new_figure(width: float = 10.0, height: float = 5.0) -> Figure:
    """An empty plot, ``width`` by ``height`` inches, without a window or global state.

    Raises:
        ModuleNotFoundError: matplotlib is not installed; the message says how to install it.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        hint = "pictures need matplotlib: pip install 'cudamem_testing[plot]'"
        raise ModuleNotFoundError(hint, name="matplotlib") from None
    return Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained", facecolor=PAPER)


def new_axes(figure: Figure, title: str = "", *, rows: int = 1, row: int = 0) -> Axes:
    """Axes in the common style, in row ``row`` of ``rows``: a light frame, a grid behind the data, the title left."""
    axes = figure.add_subplot(rows, 1, row + 1, facecolor=PAPER)
    axes.set_axisbelow(True)
    axes.grid(True, axis="y", color=GRID, linewidth=0.8)
    axes.grid(False, axis="x")
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=9)
    if title:
        axes.set_title(title, loc="left", color=INK, fontsize=11)
    return axes


def size_axis(axis: Axis, largest: float) -> None:
    """Ticks at round numbers of bytes, for values from 0 to ``largest`` bytes: ``0``, ``50 MiB``, ``100 MiB``."""
    _set_ticks(axis, *round_step(largest, _SIZES))


def time_axis(axis: Axis, longest: float) -> None:
    """Ticks at round times, for values from 0 to ``longest`` nanoseconds: ``0``, ``2 ms``, ``4 ms``."""
    _set_ticks(axis, *round_step(longest, _TIMES))


def round_step(largest: float, units: tuple[tuple[int, str], ...] = _SIZES) -> tuple[float, int, str]:
    """The distance between ticks up to ``largest``, and the unit to write them in with its size.

    A step is 1, 2 or 5 times a power of ten of its unit, and at most seven of them fit. Nothing is divided below the
    smallest unit: there is no half byte.
    """
    size, name = next((unit for unit in reversed(units) if largest >= unit[0]), units[0])
    step = 1.0 if size == units[0][0] else 0.01
    while largest / size > 7 * step:
        step *= 2.5 if f"{step:e}".startswith("2") else 2
    return step * size, size, name


def _set_ticks(axis: Axis, step: float, size: int, name: str) -> None:
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g} {name}" if value else "0"))


def save(figure: Figure, path: str | Path) -> Path:
    """Write a plot as PNG or SVG, by the ending of ``path``; an existing file is replaced atomically.

    The same plot gives the same file, without a date.

    Returns:
        The path.

    Raises:
        ValueError: for another ending.
        OSError: if the file cannot be written.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise ValueError(f"a picture is written as {' or '.join(FORMATS)}, not as {path.name!r}")
    buffer = io.BytesIO()
    _literal(figure).savefig(buffer, format=kind[1:], metadata={"Date": None} if kind == ".svg" else None)
    replace_file(path, buffer.getvalue())
    return path


def _literal(figure: Figure) -> Figure:
    """The plot with every text shown literally: ``$`` starts no formula, control characters are escaped.

    Titles and names of modules and regions come from outside: an invalid formula would raise when the plot is drawn,
    a control character or a lone surrogate would make the SVG unreadable.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_usetex(False)
        text.set_text(printable(text.get_text()))
    return figure
