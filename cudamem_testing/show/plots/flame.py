"""Flame graph: what was live, by stack: the outermost call above, what it called below it, as wide as its bytes.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cudamem_testing.show.plots.style import INK, MUTED, new_axes, new_figure, size_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIBRARY, NOTHING = "#A9BDD3", "#C5CBD3"
_PROJECT = ("#F0B35A", "#F08A5D", "#E6C34A", "#EF9AA2", "#C9C15A", "#E0A37E")
#: Narrower boxes are left out, in shares of the width; and the width of a letter in them.
_LEAST, _LETTER = 0.001, 0.0056


@dataclass(frozen=True, slots=True)
class FlameCall:
    """One call: its name, and the file of the project that it is in; no file for libraries, no name for no stack."""

    name: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Flame:
    """Bytes by stack, each from the outermost call to the one that allocated."""

    title: str
    stacks: tuple[tuple[tuple[FlameCall, ...], int], ...]


@dataclass(slots=True)
class _Node:
    call: FlameCall
    size: int = 0
    children: dict[FlameCall, _Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Box:
    """Where one call is drawn: depth, start and width in bytes."""

    call: FlameCall
    depth: int
    start: int
    width: int


def boxes(stacks: Sequence[tuple[tuple[FlameCall, ...], int]]) -> Iterator[Box]:
    """The boxes, calls of one stack that others have too taken together, the largest first from the left."""
    root = _Node(FlameCall(""))
    for stack, size in stacks:
        node = root
        for call in stack:
            node = node.children.setdefault(call, _Node(call))
            node.size += size
    waiting = [(root, -1, 0)]
    while waiting:
        node, depth, start = waiting.pop()
        if depth >= 0:
            yield Box(node.call, depth, start, node.size)
        for child in sorted(node.children.values(), key=lambda one: -one.size):
            waiting.append((child, depth + 1, start))
            start += child.size


def draw(flame: Flame, width: float = 12.0) -> Figure:
    """The picture.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    total = sum(size for _, size in flame.stacks) or 1
    found = [box for box in boxes(flame.stacks) if box.width / total >= _LEAST]
    deepest = max((box.depth for box in found), default=0)
    figure = new_figure(width, 1.3 + 0.27 * (deepest + 1))
    axes = new_axes(figure, flame.title)
    files: dict[str, int] = {}
    for box in found:
        colour = NOTHING if box.call.file == "" else LIBRARY
        if box.call.file:
            colour = _PROJECT[files.setdefault(box.call.file, len(files)) % len(_PROJECT)]
        axes.broken_barh(
            [(box.start, box.width)], (box.depth + 0.04, 0.92), facecolors=colour, edgecolor="white", linewidth=0.6
        )
        letters = int(box.width / total / _LETTER * width / 12)
        if letters >= 4:
            name = box.call.name if len(box.call.name) <= letters else f"{box.call.name[: letters - 1]}…"
            axes.text(
                box.start + total * 0.003, box.depth + 0.5, name, va="center", fontsize=7, color=INK, clip_on=True
            )
    axes.set_xlim(0, total)
    axes.set_ylim(deepest + 1, 0)
    axes.set_yticks([])
    axes.grid(False)
    axes.tick_params(colors=MUTED)
    size_axis(axes.xaxis, total)
    return figure
