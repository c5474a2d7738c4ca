"""Boxes and arrows, as DOT for Graphviz and as a page that needs no network.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import dataclass

from cudamem_testing.show.notebook import InNotebook, framed
from cudamem_testing.show.pages import page
from cudamem_testing.show.printable import one_line, printable


@dataclass(frozen=True, slots=True)
class Box:
    """A node: its label, a word for its kind, which decides its colour, and the text shown on a click."""

    label: str
    kind: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge between two boxes, by their indices."""

    source: int
    target: int
    label: str = ""
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Diagram(InNotebook):
    """A directed graph of labelled boxes.

    ``notes`` say what the diagram leaves out, ``legend`` what the kinds of its boxes mean. ``layers`` are the rows of
    the page that the boxes stand in, from the top; without them the browser finds some. Labels may be anything: both
    renderings escape them and spell control characters out.
    """

    boxes: tuple[Box, ...] = ()
    arrows: tuple[Arrow, ...] = ()
    title: str = ""
    notes: tuple[str, ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    layers: tuple[int, ...] = ()

    def dot(self) -> str:
        """The diagram in the language of Graphviz."""
        lines = ["digraph {", "  rankdir=LR;", "  node [shape=box];"]
        lines += [f"  // {one_line(note)}" for note in self.notes]
        for place, box in enumerate(self.boxes):
            colour = ", color=red" if box.kind == "tensor" else ", style=bold" if box.kind == "cycle" else ""
            tooltip = f", tooltip={_quoted(box.detail)}" if box.detail else ""
            lines.append(f"  n{place} [label={_quoted(box.label)}{colour}{tooltip}];")
        for arrow in self.arrows:
            bold = ", penwidth=2" if arrow.marked else ""
            lines.append(f"  n{arrow.source} -> n{arrow.target} [label={_quoted(arrow.label)}{bold}];")
        return "\n".join([*lines, "}", ""])

    def html(self) -> str:
        """One file with everything in it: zoom with the wheel, move by dragging, click a box to see more."""
        boxes = [[box.label, box.kind, box.detail] for box in self.boxes]
        arrows = [[arrow.source, arrow.target, arrow.label, arrow.marked] for arrow in self.arrows]
        data = {
            "boxes": boxes,
            "arrows": arrows,
            "notes": self.notes,
            "legend": self.legend,
            "layers": self.layers,
        }
        return page(self.title or "Diagram", data, "diagram")

    def _repr_html_(self) -> str:
        return framed(self.html())

    def __str__(self) -> str:
        return self.dot()


def _quoted(text: str) -> str:
    """A DOT string: the quote, the backslash and, as in HTML, ``&`` are special; a line break is one escape."""
    text = printable(text).replace("&", "&amp;")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
