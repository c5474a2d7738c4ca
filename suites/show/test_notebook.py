"""Results in a notebook: their text, escaped; pages in a frame of their own."""

from __future__ import annotations

from cudamem_testing.model.blocks import LiveSet
from cudamem_testing.model.devices import Device
from cudamem_testing.show.diagrams import Box, Diagram
from cudamem_testing.show.notebook import InNotebook


class Hostile(InNotebook):
    def __str__(self) -> str:
        return "</pre><script>\x1b&"


def test_a_result_is_its_text() -> None:
    assert Hostile()._repr_html_().endswith(r"&lt;/pre&gt;&lt;script&gt;\x1b&amp;</pre>")
    assert LiveSet(Device("cpu"))._repr_html_().endswith(">0 B in 0 blocks on cpu</pre>")


def test_a_diagram_is_a_frame_that_runs_alone() -> None:
    shown = Diagram((Box("a\"'><b>"),))._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert shown.count("<") == 2
    assert 'sandbox="allow-scripts"' in shown
