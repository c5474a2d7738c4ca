"""Colours that can be distinguished, ticks at round numbers, files, and nothing left behind in matplotlib."""

from __future__ import annotations

import itertools
import math
import sys
import warnings
import xml.etree.ElementTree

import pytest

from cudamem_testing.show.plots import style
from cudamem_testing.show.printable import printable

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009):
# what a person without one kind of cones sees, as a matrix on linear RGB.
SEEN_BY = {
    "everybody": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(colour):
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(rgb):
    """CIE 1976 L*a*b* of linear RGB."""
    xyz = times(((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)), rgb)
    x, y, z = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116
        for part in (xyz[0] / 0.9505, xyz[1], xyz[2] / 1.089)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("person", SEEN_BY)
@pytest.mark.parametrize("palette", [tuple(style.CATEGORY_COLOURS.values()), style.LINE_COLOURS])
def test_colours_can_be_distinguished_by(person, palette):
    assert len(palette) == 8
    seen = {
        colour: lab([min(1, max(0, part)) for part in times(SEEN_BY[person], linear(colour))]) for colour in palette
    }
    for one, other in itertools.combinations(palette, 2):
        assert math.dist(seen[one], seen[other]) > 12, (one, other)


def test_neighbours_in_a_stack_differ_in_lightness():
    lightness = [lab(linear(colour))[0] for colour in style.CATEGORY_COLOURS.values()]
    assert all(abs(one - other) > 4 for one, other in itertools.pairwise(lightness)), lightness


@pytest.mark.parametrize(
    ("largest", "step", "unit"),
    [
        (0, 1, "B"),
        (3, 1, "B"),
        (100, 20, "B"),
        (1000, 200, "B"),
        (1024, 0.2 * 1024, "KiB"),
        (7 * 2**20, 2**20, "MiB"),
        (7.1 * 2**20, 2 * 2**20, "MiB"),
        (500 * 2**20, 100 * 2**20, "MiB"),
        (80 * 2**30, 20 * 2**30, "GiB"),
        (9000 * 2**40, 2000 * 2**40, "TiB"),
    ],
)
def test_ticks_stand_at_round_numbers(largest, step, unit):
    assert style.round_step(largest)[0] == pytest.approx(step)
    assert style.round_step(largest)[2] == unit
    assert largest / style.round_step(largest)[0] <= 7


def labels(axis):
    return [
        axis.get_major_formatter()(tick) for tick in axis.get_major_locator().tick_values(*axis.get_view_interval())
    ]


def test_axes_are_labelled_with_their_units():
    axes = style.new_axes(style.new_figure(), "bytes over time")
    axes.set_xlim(0, 4e6)
    axes.set_ylim(0, 120 * 2**20)
    style.time_axis(axes.xaxis, 4e6)
    style.size_axis(axes.yaxis, 120 * 2**20)
    assert labels(axes.xaxis)[1:-1] == ["0", "1 ms", "2 ms", "3 ms", "4 ms"]
    assert labels(axes.yaxis)[1:-1] == ["0", "20 MiB", "40 MiB", "60 MiB", "80 MiB", "100 MiB", "120 MiB"]
    assert axes.get_title(loc="left") == "bytes over time"


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG\r\n"), ("b.svg", b"<?xml"), ("C.PNG", b"\x89PNG\r\n")])
def test_a_picture_becomes_a_file(tmp_path, name, start):
    figure = style.new_figure(2, 1)
    style.new_axes(figure).plot([0, 1], [0, 1])
    assert style.save(figure, str(tmp_path / "folder" / name)) == tmp_path / "folder" / name
    content = (tmp_path / "folder" / name).read_bytes()
    assert content.startswith(start)
    assert b"<dc:date>" not in content
    style.save(figure, tmp_path / "folder" / name)
    assert [file.name for file in (tmp_path / "folder").iterdir()] == [name]


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^a picture is written as \.png or \.svg, not as 'a\.pdf'$"):
        style.save(style.new_figure(), tmp_path / "a.pdf")
    assert list(tmp_path.iterdir()) == []


def test_matplotlib_is_left_as_it_was(tmp_path, monkeypatch):
    import matplotlib

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # whoever imports it fails
    before = dict(dict.items(matplotlib.rcParams))  # its own look-up would choose a backend
    figure = style.new_figure(2, 1)
    style.new_axes(figure, "title")
    style.save(figure, tmp_path / "a.png")
    assert dict(dict.items(matplotlib.rcParams)) == before


def test_a_foreign_style_changes_nothing(tmp_path):
    import matplotlib

    def drawn(name):
        figure = style.new_figure(2, 1)
        style.new_axes(figure, "title").plot([0, 1], [0, 1], color=style.LINE_COLOURS[0])
        return style.save(figure, tmp_path / name).read_bytes()

    plain = drawn("a.png")
    dark = {"figure.facecolor": "black", "axes.facecolor": "black", "axes.edgecolor": "red", "text.color": "white"}
    with matplotlib.rc_context({**dark, "xtick.color": "red", "axes.titlecolor": "red", "axes.spines.top": False}):
        assert drawn("b.png") == plain


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        style.new_figure()
    assert str(caught.value) == "pictures need matplotlib: pip install 'cudamem_testing[plot]'"
    assert caught.value.name == "matplotlib"


def test_a_broken_installation_is_not_hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        style.new_figure()


@pytest.mark.parametrize(
    "title", [r"cost in $ of \frac{ in $", "plain", "größe 東京", "\x1b[31m\0 \ud800 \u202e", "$x$ _a_"]
)
def test_titles_are_shown_as_they_are(tmp_path, title):
    figure = style.new_figure(6, 4)
    axes = style.new_axes(figure, title)
    axes.set_xlabel(title)
    axes.annotate(title, (0, 0))
    axes.plot([0, 1], [0, 1], label=f"l{title}")
    axes.legend()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph ")  # a font without Chinese
        content = style.save(figure, tmp_path / "a.svg").read_bytes()
    shown = printable(title)
    assert [text.get_text() for text in axes.texts] == [shown]
    xml.etree.ElementTree.fromstring(content)
    assert content.count(f"<!-- {shown} -->".encode()) == 3
