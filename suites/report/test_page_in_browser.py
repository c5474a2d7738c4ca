"""The page in a headless Chromium without a network: what a person sees, points at, types and presses.

Needs Chromium (``CHROMIUM`` names it, else it is looked for) and the packages of the extra ``browser``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from cudamem_testing.model.records import Environment, RunRecord
from cudamem_testing.show.diagrams import Arrow, Box, Diagram
from cudamem_testing.show.lifetimes import Bar, Lifetimes, OperatorStep
from suites.report.conftest import CHROMIUM, DESK, PHONE, Tab
from suites.report.pages import (
    HOSTILE,
    LONG,
    MIB,
    compare_text,
    curve,
    cycle,
    data_of,
    everything,
    leak,
    record,
    run_text,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: set CHROMIUM, or install Debian's chromium"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of everything, and one of two runs."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "run.html").write_text(run_text(everything()), encoding="utf-8")
    small, large = curve(100, 3, 5, 30 * MIB), curve(200, 3, 5, 60 * MIB)
    before = RunRecord(
        tests=(
            record("a::b", "passed", peak=4 * MIB, curves=(small,)),
            *(record("gone", "passed"), record("c", "error", leak())),
        )
    )
    after = before._replace(
        tests=(
            record("a::b", "passed", peak=6 * MIB, curves=(large,)),
            *(record("new", "passed"), record("c", "error", cycle())),
        )
    )
    compared = compare_text(before, after)
    (folder / "two.html").write_text(compared, encoding="utf-8")
    return folder


Open = Callable[..., Any]


@pytest.fixture
def opened(tab: Tab, files: Path) -> Iterator[Open]:
    """Open a page: ``opened("#test=...")``. It must say nothing on the console, and ask for nothing."""

    def open_(
        fragment: str = "",
        file: str = "run.html",
        dark: bool = False,
        size: dict[str, int] = DESK,
        wait: str = "main > div",
    ) -> Any:
        return tab.show(f"file://{files / file}{fragment}", size, dark, wait)

    tab.said.clear()
    yield open_
    assert tab.said == []


def names(page: Any) -> list[str]:
    return [one.inner_text() for one in page.query_selector_all(".big tbody .test-name")]


def test_the_overview(opened: Open) -> None:
    page = opened()
    assert page.inner_text(".verdict h2") == "7 of 40 tests failed, 6 of them because of memory"
    assert page.inner_text(".tools [role=status]") == "40 tests"
    assert names(page)[0] == "test_over"
    assert page.locator("section.lines.warn li").count() == 2
    assert page.locator(".items li").count() == 7


def test_sorting(opened: Open) -> None:
    page = opened()
    header = page.locator("th button", has_text="peak")
    header.click()
    assert names(page)[:2] == ["test_over", "test_passes[29]"]
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("peak")
    header.click()
    assert names(page)[:2] == ["test_passes[0]", "test_passes[1]"]
    page.locator("th button", has_text="test").first.press("Enter")
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("test")


def test_the_change_against_the_baseline_of_every_test(opened: Open) -> None:
    page = opened()
    page.locator("th button", has_text="change").click()
    place = page.locator(".big thead th").all_inner_texts().index("change") + 1
    cells = [one.strip() for one in page.locator(f".big tbody tr > :nth-child({place})").all_inner_texts()][
        : len(names(page))
    ]
    shown = dict(zip(names(page), cells, strict=True))
    assert [*shown.items()][:2] == [("test_passes[1]", "+1.0 MiB"), ("test_baseline", "+75 %")]
    assert shown["test_over"] == "\u00b10 %"
    page.locator(".chips button", has_text="changed").click()
    assert [(row.inner_text(), shown.get(row.inner_text())) for row in page.query_selector_all(".test-name")] == [
        *(("test_passes[1]", "+1.0 MiB"), ("test_baseline", "+75 %"), ("test_passes[2]", None))
    ]
    page.locator(".big th.name a", has_text="passes[2]").click()
    page.wait_for_selector(".crumbs")
    numbers = page.locator("section", has_text="Against its baseline").locator("tbody tr").first
    assert numbers.inner_text().split("\t") == [
        "requested",
        "cuda:0",
        "3.0 MiB to 4.0 MiB",
        "2.0 MiB",
        "\u22121.0 MiB (\u221225 %)",
    ]


def test_filter_and_search(opened: Open) -> None:
    page = opened()
    page.locator(".chips button", has_text="cycle").click()
    assert names(page) == ["test_cycle"]
    assert page.inner_text(".tools [role=status]") == "1 of 40 tests"
    page.locator(".chips button", has_text="all").click()
    page.keyboard.press("/")
    page.keyboard.type("passes 29")
    assert names(page) == ["test_passes[29]"]
    page.fill("#search", "nothing has this name")
    assert page.inner_text(".big td.none") == "nothing fits the filter"


def test_the_filter_stays_on_the_way_back(opened: Open) -> None:
    page = opened()
    page.locator(".chips button", has_text="leak").click()
    page.locator(".big th.name a").first.click()
    page.wait_for_selector(".crumbs")
    page.go_back()
    page.wait_for_selector(".chips")
    assert page.locator(".chips [aria-pressed=true]").inner_text().startswith("leak")


def test_a_link_leads_to_a_test(opened: Open) -> None:
    page = opened("#test=test_a.py%3A%3Atest_leak")
    assert page.inner_text(".title h2") == "test_a.py::test_leak"
    assert page.inner_text(".command code") == "pytest test_a.py::test_leak --cudamem --cudamem-leaks=fail"
    assert [one.inner_text() for one in page.query_selector_all(".chain .box")] == [
        *("module project.cache", "dict", "list", "Tensor", "12.0 MiB float32[3145728]")
    ]
    assert [one.inner_text() for one in page.query_selector_all(".chain .edge")] == [
        "_CACHE",
        "['layer0']",
        "[0]",
        "keeps",
    ]
    page.keyboard.press("Escape")
    page.wait_for_selector(".verdict")


def test_a_link_leads_to_a_cause(opened: Open) -> None:
    page = opened()
    page.locator(".items a", has_text="_CACHE").click()
    page.wait_for_selector(".crumbs")
    assert page.inner_text(
        ".title p >> nth=1"
    ) == "first seen in\ntest_a.py::test_leak" or "first seen in" in page.inner_text(".title")
    assert page.locator("table.plain tbody tr").count() == 2
    assert '"bytes": 12582912' in page.inner_text(".command code")


@pytest.mark.parametrize("fragment", ["#test=gone", "#cause=gone", "#test=%E0%A4%A"])
def test_a_link_that_leads_nowhere_says_so(opened: Open, fragment: str) -> None:
    assert "in this report" in opened(fragment).inner_text("main")


def test_pointing_at_the_memory_over_time(opened: Open) -> None:
    page = opened("#test=test_a.py%3A%3Atest_over")
    chart = page.locator(".plot svg")
    assert "peak" in chart.get_attribute("aria-label")
    before = page.inner_text(".readout")
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.8 * box["height"])
    there = page.inner_text(".readout")
    assert there != before
    assert "project/attention.py:8" in there
    assert page.locator(".readout tr.lit").count() == 1
    assert page.locator(".plot line.bound").count() == 1
    page.locator(".modes button", has_text="by time").click()
    assert page.locator(".plot text.axis").last.text_content() == "2.99 ms"


def test_keys_move_along_the_memory_over_time(opened: Open) -> None:
    page = opened("#test=test_a.py%3A%3Atest_over")
    page.locator(".plot svg").focus()
    page.keyboard.press("Home")
    assert "event 0 of 300" in page.inner_text(".readout")
    page.keyboard.press("ArrowRight")
    assert "event 1 of 300" in page.inner_text(".readout")
    page.keyboard.press("End")
    assert "event 299 of 300" in page.inner_text(".readout")
    page.keyboard.press("p")
    assert "event 299" not in page.inner_text(".readout")
    assert page.inner_text("#said").startswith(page.inner_text(".readout b"))


def test_zooming_into_what_was_live(opened: Open) -> None:
    page = opened("#test=test_a.py%3A%3Atest_over")
    cell = page.locator(".cell", has_text="Attention.forward").first
    narrow = cell.bounding_box()["width"]
    cell.click()
    wide = page.locator(".cell:focus").bounding_box()["width"]
    assert wide > 1.5 * narrow
    assert page.locator(".cell.above").count() == 3
    page.keyboard.press("Escape")
    assert page.locator(".cell.above").count() == 0
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Model.forward")
    page.keyboard.press("Enter")
    assert page.locator(".cell.above").count() == 2


def test_a_cycle_is_a_ring(opened: Open) -> None:
    page = opened("#test=test_a.py%3A%3Atest_cycle")
    labels = page.query_selector_all(".ring-picture text.object")
    assert [one.evaluate("node => node.firstChild.data") for one in labels] == [
        "Model",
        "Head",
        "Block",
    ]
    assert page.locator(".ring-picture .arc").count() == 3


def test_a_baseline_before_and_after(opened: Open) -> None:
    page = opened("#test=test_a.py%3A%3Atest_baseline")
    assert page.inner_text(".change p >> nth=0").startswith("requested: 8.0 MiB recorded, 14.0 MiB now, +6.0 MiB")
    assert [row.inner_text().split() for row in page.query_selector_all(".pairs tbody td.num")][:3] == [
        *(["4.0", "MiB"], ["9.0", "MiB"], ["+5.0", "MiB"])
    ]


def test_a_text_that_differs(opened: Open) -> None:
    page = opened("#test=test_a.py%3A%3Atest_text")
    assert [one.text_content().strip() for one in page.query_selector_all(".diff .del")] == ["\u2212 b"]
    assert page.locator(".diff .ins").first.text_content().strip() == "+ B"


def test_hostile_names_are_text(opened: Open) -> None:
    page = opened()
    row = page.locator(".big th.name a", has_text="test_hostile")
    assert "</script><script>" in row.text_content()
    row.click()
    page.wait_for_selector(".crumbs")
    shown = page.inner_text("main")
    assert HOSTILE.partition("\u202e")[0] in shown
    assert "\u202e" not in shown
    assert page.locator("img").count() == 0
    assert "broken" not in page.title().replace(HOSTILE[:80], "").partition("document")[0]
    assert page.evaluate("document.querySelectorAll('script').length") == 2


def test_a_long_name_keeps_the_page_in_its_width(opened: Open) -> None:
    for size in (DESK, PHONE):
        page = opened(f"#test=test_a.py%3A%3Atest_long%5B{LONG}%5D", size=size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        page.goto(page.url.partition("#")[0])
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_on_a_phone_names_have_room(opened: Open) -> None:
    page = opened(size=PHONE)
    table, name = (page.locator(where).first.bounding_box() for where in (".big", ".big tbody th.name"))
    assert abs(table["width"] - page.locator(".rows").bounding_box()["width"]) < 20
    assert name["width"] > 0.45 * table["width"]
    page.fill("#search", "nothing has this name")
    assert page.locator(".big td.none").bounding_box()["width"] > 0.95 * table["width"]


def test_on_a_phone_places_of_a_baseline_have_room(opened: Open) -> None:
    page = opened("#test=test_a.py%3A%3Atest_baseline", size=PHONE)
    assert page.locator(".pairs tbody th").first.bounding_box()["width"] >= 110
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_two_runs(opened: Open) -> None:
    page = opened(file="two.html")
    assert page.inner_text(".verdict h2") == "1 number grew, 0 shrank"
    assert names(page) == ["b"]
    assert [one.inner_text() for one in page.query_selector_all("tbody .pill")] == ["new", "gone"]
    page.locator("a", has_text="all tests of the later report").click()
    page.wait_for_selector(".chips")
    assert len(names(page)) == 3


def test_the_memory_over_time_of_two_runs_lies_on_each_other(opened: Open) -> None:
    page = opened(file="two.html")
    chart = page.locator(".both .plot svg")
    assert page.locator(".both .plot path.earlier:not(.under)").count() == 1
    peaks = [max(one.totals) for one in (curve(200, 3, 5, 60 * MIB), curve(100, 3, 5, 30 * MIB))]
    now, before = (f"{one / MIB:.1f} MiB" for one in peaks)
    assert f"peak {now}, in the earlier run {before}" in chart.get_attribute("aria-label")
    assert page.inner_text(".both .readout p").startswith(f"{now}, before 24.4 MiB (+")  # aligned
    assert page.inner_text(".both .readout tr >> nth=0").split("\t")[1:3] == ["15.3 MiB", "was 6.4 MiB"]
    chart.focus()
    page.keyboard.press("End")
    assert page.inner_text(".both .readout p").startswith("5.0 MiB, before 5.0 MiB (+948 B) event 199")
    page.locator(".both a").click()
    page.wait_for_selector(".crumbs")
    assert page.locator(".plot path.earlier:not(.under)").count() == 1


def test_paper_shows_every_test(opened: Open) -> None:
    page = opened()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert len(names(page)) == 40
    assert not page.locator(".chips").is_visible()


#: Rules of axe that read colours: four fifths of its time.
COLOURS = ("color-contrast", "link-in-text-block")
#: The dark page differs from the light one in its colours alone, that on a phone in anything else.
LOOKS = {
    "desk": (DESK, False, {}),
    "desk, dark": (DESK, True, {"runOnly": COLOURS}),
    "phone": (PHONE, False, {"rules": {rule: {"enabled": False} for rule in COLOURS}}),
}


@pytest.mark.parametrize(("size", "dark", "rules"), LOOKS.values(), ids=LOOKS)
def test_people_who_cannot_see_can_use_it(
    opened: Open, size: dict[str, int], dark: bool, rules: dict[str, object]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the package axe-playwright-python")
    checker = axe.Axe()
    fragments = [f"#test=test_a.py%3A%3Atest_{name}" for name in ("over", "leak", "cycle", "baseline", "text")]
    fragments += [f"#{kind}={quote(key)}" for kind, key in hostile_keys()]
    page = opened(dark=dark, size=size)
    assert violations(checker, page, rules) == []
    for fragment in fragments:
        page.evaluate("document.querySelector('main > div').id = 'before'")
        page.goto(page.url.partition("#")[0] + fragment)
        page.wait_for_selector("main > div:not(#before)")
        page.wait_for_timeout(60)
        assert violations(checker, page, rules) == [], fragment
    page = opened(file="two.html", dark=dark, size=size)
    assert violations(checker, page, rules) == []


def hostile_keys() -> list[tuple[str, str]]:
    """The test with a hostile name, and the cause of what it left."""
    data = data_of(run_text(everything()))
    return [
        ("test", next(one["id"] for one in data["tests"] if "hostile" in one["id"])),
        ("cause", data["causes"][0]["key"]),
    ]


def violations(checker: Any, page: Any, rules: dict[str, object] | None = None) -> list[tuple[str, list[Any]]]:
    """What axe objects to, and at which elements; of all rules unless ``rules`` chooses."""
    found = checker.run(page, options={"resultTypes": ["violations"], **(rules or {})}).response["violations"]
    return [(one["id"], [node["target"] for node in one["nodes"]]) for one in found]


@pytest.mark.parametrize(("size", "dark"), [(DESK, False), (PHONE, True)], ids=["desk", "phone, dark"])
def test_people_who_cannot_see_can_use_the_drawings(
    opened: Open, files: Path, size: dict[str, int], dark: bool
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the package axe-playwright-python")
    checker = axe.Axe()
    (files / "boxes.html").write_text(boxes().html(), encoding="utf-8")
    (files / "lives.html").write_text(lives().html(), encoding="utf-8")
    for file, wait in (("boxes.html", "canvas"), ("lives.html", ".lives svg")):
        page = opened(file=file, dark=dark, size=size, wait=wait)
        assert violations(checker, page) == [], file
        page.locator("aside li button").first.click()
        assert page.inner_text("#shown h2") != ""
        assert violations(checker, page) == [], file
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), file


def boxes() -> Diagram:
    """Twenty objects of which each refers to the next one, and a tensor."""
    some = (*(Box(f"Block {number}", "cycle", "its detail") for number in range(19)), Box(HOSTILE, "tensor", HOSTILE))
    arrows = tuple(Arrow(number, (number + 1) % 19, ".next", marked=True) for number in range(19))
    legend = (("cycle", "in the cycle"), ("tensor", "tensor"))
    return Diagram(some, (*arrows, Arrow(3, 19, f".{HOSTILE}")), "Reference cycle", ("a note",), legend)


def test_the_list_beside_boxes_and_arrows(opened: Open, files: Path) -> None:
    (files / "boxes.html").write_text(boxes().html(), encoding="utf-8")
    page = opened(file="boxes.html", wait="canvas")
    page.fill("input[type=search]", "block 3")
    button = page.locator(".boxes button")
    assert button.all_inner_texts() == ["Block 3"]
    button.focus()
    page.keyboard.press("Enter")
    assert page.inner_text("#shown pre") == "its detail"
    shown = [one.replace("\xa0", " ") for one in page.locator("#shown li").all_inner_texts()]
    assert shown[:2] == ["Block 2 .next \u2192 this", ".next \u2192 Block 4"]
    assert shown[2].startswith(".</script>")
    page.locator("#shown button", has_text="Block 4").click()
    assert page.inner_text("#shown h2") == "Block 4"
    assert page.evaluate("window.cudamemDiagram.$(':selected').length") == 1


def test_the_page_of_a_card(opened: Open, files: Path) -> None:
    from suites.report.test_page_of_card import report

    (files / "card.html").write_text(run_text(report("after")), encoding="utf-8")
    page = opened("#test=tests%2Ftest_decoder.py%3A%3Atest_training_step", file="card.html")
    assert page.locator(".plot path.band").count() >= 10
    assert page.locator(".cell").count() > 20
    assert page.locator(".plot rect.region").count() >= 6


def lives() -> Lifetimes:
    """Ninety tensors of hostile names over a hundred operators, of all categories that have dark and light colours."""
    kinds = ("ACTIVATION", "PARAMETER", "GRADIENT")
    bars = [
        Bar(f"T{number} {HOSTILE}", 1000 * (number % 7 + 1), "cpu", number, number + 9, kinds[number % 3])
        for number in range(90)
    ]
    steps = tuple(OperatorStep("aten::mm", (("Model", 0), ("Block", number // 10))) for number in range(100))
    return Lifetimes(tuple(bars), steps, HOSTILE, ("a note",))


def test_lifetimes(opened: Open, files: Path) -> None:
    (files / "flow.html").write_text(lives().html(), encoding="utf-8")
    page = opened(file="flow.html", wait=".lives svg")
    assert page.locator(".bar").count() == 90
    assert page.locator("rect.module").count() >= 10
    page.locator(".bar").nth(20).click()
    assert page.inner_text("#shown h2").startswith("T")
    page.fill("#search", "T33")
    assert page.inner_text("[role=status]") == "1 tensor"
    page.press("#search", "Enter")
    assert page.inner_text("#shown h2").startswith("T33")
    page.wait_for_timeout(60)
    near = page.locator(".bar").count()
    assert near < 90
    page.locator(".lives").focus()
    page.keyboard.press("0")
    page.wait_for_timeout(60)
    assert page.locator(".bar").count() == 90
    assert page.locator("img").count() == 0


def test_five_thousand_tests_open_at_once(opened: Open, files: Path, figure: Callable[[str], None]) -> None:
    tests = tuple(
        record(f"tests/test_{one % 90}.py::test_case[{one}]", "passed", peak=one * 1000) for one in range(5000)
    )
    run = RunRecord(Environment(("cuda:0 (NVIDIA H100)",), "2.13.0", "native"), tests)
    (files / "many.html").write_text(run_text(run), encoding="utf-8")
    times = []
    for _ in range(3):
        page = opened(file="many.html")
        times.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    assert min(times) < 2000
    assert page.locator(".big tbody tr").count() < 80
    page.evaluate("document.querySelector('.rows').scrollTop = 90000")
    page.wait_for_timeout(50)
    assert names(page)
    page.fill("#search", "case[4321]")
    assert names(page) == ["test_case[4321]"]
    figure(f"a page of 5,000 tests opens in {min(times) / 1000:.1f} s")
