"""Boxes and arrows whose labels are anything: DOT and pages that open all the same."""

from __future__ import annotations

import json
import re

import pytest

from cudamem_testing.show.diagrams import Arrow, Box, Diagram
from cudamem_testing.show.pages import page

HOSTILE = 'a\x1b[31m\0"\\\r\u202e\ud800&lt;\nb'
SHOWN = r"a\x1b[31m\x00" + '"\\' + r"\r\u202e\ud800&lt;" + "\nb"


def diagram(text: str) -> Diagram:
    boxes = (Box(text, detail=text), Box("b"))
    return Diagram(boxes, (Arrow(0, 1, text),), title=text, notes=(text,), legend=(("", "operator"),))


def test_dot_escapes_control_characters() -> None:
    quoted = '"' + SHOWN.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    assert diagram(HOSTILE).dot().splitlines() == [
        "digraph {",
        "  rankdir=LR;",
        "  node [shape=box];",
        "  // " + SHOWN.replace("\n", "\\n"),
        f"  n0 [label={quoted}, tooltip={quoted}];",
        '  n1 [label="b"];',
        f"  n0 -> n1 [label={quoted}];",
        "}",
    ]


def test_a_page_escapes_control_characters() -> None:
    text = diagram(HOSTILE).html()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found is not None
    data = json.loads(found[1])
    assert data["boxes"] == [[SHOWN, "", SHOWN], ["b", "", ""]]
    assert data["arrows"] == [[0, 1, SHOWN, False]]
    assert data["notes"] == [SHOWN]
    text.encode()


def test_plain_labels_stay_as_they_are() -> None:
    text = "größe\n東京 $x$"
    assert 'n0 [label="größe\\n東京 $x$", tooltip="größe\\n東京 $x$"];' in diagram(text).dot()
    assert json.dumps(text)[1:-1] in diagram(text).html()


@pytest.mark.parametrize(
    ("title", "shown"), [("a <b> & \x1b\ud800", r"a &lt;b&gt; &amp; \x1b\ud800"), ("größe", "größe")]
)
def test_the_title_of_a_page(title: str, shown: str) -> None:
    text = page(title, {}, "diagram")
    assert f"<title>{shown}</title>" in text
    assert f"<h1>{shown}</h1>" in text
    text.encode()
