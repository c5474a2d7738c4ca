"""Diagrams: boxes and arrows, as DOT for Graphviz and as a page that needs no network.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from cudamem_testing.show.pages import page


@dataclass(frozen=True, slots=True)
class Box:
    """A node: its label, a word for its kind that gives it its colour, and the text that a click shows."""

    label: str
    kind: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge between two boxes, by their places."""

    source: int
    target: int
    label: str = ""
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Diagram:
    """A directed graph of labelled boxes.

    ``notes`` say what the diagram leaves out, ``legend`` what the kinds of its boxes mean. ``layers`` are the rows of
    the page that the boxes stand in, from the top; without them the browser finds some. Labels may be anything: both
    renderings escape them.
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
        lines += [f"  // {_one_line(note)}" for note in self.notes]
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

    def __str__(self) -> str:
        return self.dot()


def _quoted(text: str) -> str:
    """A string of DOT: only the quote and the backslash are special; a line break is written as one escape."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "").replace("\n", "\\n") + '"'


def _one_line(text: str) -> str:
    return json.dumps(text)[1:-1]
