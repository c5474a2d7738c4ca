"""The picture of bytes by category: what is drawn, where the peak is marked, what stretches are called."""

from __future__ import annotations

from cudamem_testing.show.plots import area, style

MIB = 2**20
AREA = area.Area(
    "step",
    times=[0, 10, 20, 30],
    sizes={"ACTIVATION": [0, 3 * MIB, 5 * MIB, 0], "PARAMETER": [2 * MIB] * 4, "INPUT": [0] * 4},
    peak=2,
    peak_text="peak 7.0 MiB",
    bands=(
        area.Band("forward", 0, 20),
        area.Band("inner", 5, 10, 1),
        area.Band("innermost", 5, 10, 2),
        area.Band("a region with a very long name", 20, 24),
        area.Band("short", 24, 24),
        area.Band("rest", 24, 40),
    ),
)


def drawn(one=AREA):
    figure = area.draw(one)
    (axes,) = figure.axes
    return figure, axes


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_categories_have_colours_and_empty_ones_are_left_out():
    figure, axes = drawn()
    stacks = {collection.get_label(): collection for collection in axes.collections if collection.get_label()[0] != "_"}
    assert list(stacks) == ["PARAMETER", "ACTIVATION"]
    colours = {
        name: "#" + "".join(f"{round(255 * part):02X}" for part in stack.get_facecolor()[0][:3])
        for name, stack in stacks.items()
    }
    assert colours == {name: style.CATEGORY_COLOURS[name] for name in stacks}
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ACTIVATION", "PARAMETER"]  # as they lie on each other
    top = max(point[1] for path in stacks["ACTIVATION"].get_paths() for point in path.vertices)
    assert top == 7 * MIB
    assert axes.get_title(loc="left") == "step"


def test_the_peak_and_the_stretches_are_named():
    _, axes = drawn()
    assert texts(axes) == ["forward", "inner", "a region …", "rest", "peak 7.0 MiB"]
    (peak,) = [text for text in axes.texts if text.get_text() == "peak 7.0 MiB"]
    assert peak.xy == (20, 7 * MIB)
    assert axes.get_xlim() == (0, 40)


def test_nothing_to_draw_is_an_empty_picture(tmp_path):
    figure, axes = drawn(area.Area("nothing", [], {}))
    assert (texts(axes), figure.legends) == ([], [])
    assert style.save(figure, tmp_path / "a.svg").read_bytes().startswith(b"<?xml")


def test_a_picture_is_a_file(tmp_path):
    path = style.save(drawn()[0], tmp_path / "a.png")
    assert path.stat().st_size > 5000
