"""The picture: what is drawn, exactly, and that it is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudamem_testing import load_operators
from cudamem_testing.operators.picture import picture_of
from cudamem_testing.operators.rows import BETWEEN, Marker
from cudamem_testing.show.plots.lines import Moment, Picture, Shade, StepLine, draw
from suites.operators.synthetic import BACKWARD, FORWARD, KIB, Maker, step


def test_what_is_drawn() -> None:
    maker = Maker("cuda:0", start=100)
    maker.add("mm", "a", FORWARD, 50, 0, 25, active=150, reserved=400)
    maker.add(BETWEEN, None, FORWARD, 0, 10, active=150, reserved=400)
    maker.add("mm", "a.b", BACKWARD, 20, 20, 20, active=140, reserved=800)
    picture = picture_of(maker.table(Marker("fw_start", 0)))
    assert picture == Picture(
        title="Memory of cuda:0 over operator calls",
        across="operator calls",
        lines=(
            StepLine("allocated", ((0, 100), (1, 150), (1, 140), (2, 140))),
            StepLine("highest inside the operator", ((0, 175), (1, 150), (1, 160)), thin=True),
            StepLine("active", ((1, 150), (1, 150), (2, 140))),
            StepLine("reserved", ((1, 400), (1, 400), (2, 800))),
        ),
        shades=(Shade("forward", 0, 1), Shade("backward", 1, 2)),
        moments=(Moment("fw_start", 0),),
        peak=Moment("peak 175 B: aten::mm in a", 0, 175),
    )


def test_without_peaks_and_of_one_device() -> None:
    table = Maker().add("mm", None, FORWARD, 8, peak=None).table()
    picture = picture_of(table, "cpu")
    assert [line.name for line in picture.lines] == ["allocated"]
    assert picture.peak is None
    with pytest.raises(ValueError, match=r"^cuda was not measured \(measured: cpu\)$"):
        picture_of(table, "cuda")


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_a_loaded_table_draws_the_same(ending: str, tmp_path: Path) -> None:
    table = step().table(Marker("fw_start", 0), Marker("optimizer_step", 8))
    loaded = load_operators(table.save(tmp_path / "table.json"))
    one, other = table.plot(tmp_path / f"one{ending}"), loaded.plot(tmp_path / f"other{ending}")
    assert one.stat().st_size > 5 * KIB
    if ending == ".png":
        assert one.read_bytes() == other.read_bytes()
    else:
        words = one.read_text(encoding="utf-8")
        for word in (
            " fw_start",
            " optimizer_step",
            "peak 38.1 KiB: aten::addcdiv_",
            "forward",
            "backward",
            "allocated",
        ):
            assert f"<!-- {word} -->" in words


def test_another_ending_or_an_empty_table(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^a picture is written as \.png or \.svg, not as 'a\.pdf'$"):
        step().table().plot(tmp_path / "a.pdf")
    assert draw(Picture("nothing", "calls", ()), tmp_path / "empty.png").exists()


def test_many_moments_have_no_names(tmp_path: Path) -> None:
    moments = tuple(Moment(f"moment {number}", number) for number in range(13))
    line = StepLine("allocated", tuple((number, 100 * number) for number in range(13)))
    few = draw(Picture("few", "calls", (line,), moments=moments[:12]), tmp_path / "few.svg").read_text()
    many = draw(Picture("many", "calls", (line,), moments=moments), tmp_path / "many.svg").read_text()
    assert (few.count("<!--  moment "), many.count("<!--  moment ")) == (12, 0)
