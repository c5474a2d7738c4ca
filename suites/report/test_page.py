"""The page without a browser: what its data holds, that nothing of a test is read as HTML, how large it becomes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.model.curves import Curve
from cudamem_testing.model.records import Environment, RunRecord, TestRecord, Unchecked
from cudamem_testing.model.stacks import Stack
from cudamem_testing.report.curves import read_curve
from cudamem_testing.report.page import run_data, write_html
from cudamem_testing.report.report_files import read_json, write_json
from cudamem_testing.show.pages import Listing, page, script_pieces
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
    over_budget,
    record,
    regression,
    run_text,
)

MB = 10**6
ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "header", "h1", "main", "aside", "noscript", "p", "script")
}


@pytest.mark.parametrize("made", [run_text(everything()), page(HOSTILE, {"a": HOSTILE}, "diagram")])
def test_nothing_of_a_test_is_read_as_html(made: str) -> None:
    parser = Elements()
    parser.feed(made)
    assert {*parser.tags} <= ELEMENTS
    assert not [name for name in parser.attributes if name.startswith("on")]
    assert "\u202e" not in made
    (data,) = re.findall(r'id="data">(.*?)</script>', made, re.S)
    assert not re.search(r"[<>&]", data)


def test_elements_of_a_listing_become_text_one_after_the_other() -> None:
    made: list[int] = []

    def elements() -> Iterator[object]:
        for number in range(2):
            made.append(number)
            yield {"n": number, "text": "<b>\u202e"}

    data = {"empty": Listing(lambda: ()), "a<": Listing(elements), "b": [1]}
    pieces = [(piece, len(made)) for piece in script_pieces(data)]
    first, second = (f'{{"n":{number},"text":"\\u003cb\\u003e\\\\u202e"}}' for number in range(2))
    assert pieces == [
        *(('{"empty":', 0), ("[", 0), ("]", 0)),
        *((',"a\\u003c":', 0), ("[", 0), (first, 1), (f",{second}", 2), ("]", 2)),
        *((',"b":', 2), ("[1]", 2), ("}", 2)),
    ]
    assert [*script_pieces({})] == ["{}"]


def test_a_page_that_breaks_off_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.html").write_text("old")
    run = RunRecord(tests=(record("a", "passed"), record("b", "passed")))
    monkeypatch.setattr(
        "cudamem_testing.report.page._test", lambda test, _: {"id": test.nodeid} if test.nodeid == "a" else 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        write_html(run, tmp_path / "a.html")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("a.html", "old")]


class Elements(HTMLParser):
    """What a browser makes elements of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


@pytest.mark.parametrize("view", ["diagram", "report", "lifetimes"])
def test_the_policy_allows_our_scripts_and_no_network(view: str) -> None:
    made = page("a", {}, view)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', made)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    scripts = re.findall(r"<script>(.*?)</script>", made, re.S)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert rules["script-src"] == " ".join(f"'sha256-{one}'" for one in digests)
    own = made if view != "diagram" else made.replace(scripts[0], "")
    assert {*re.findall(r"https?://[^\s\"'`)]+", own)} <= {"http://www.w3.org/2000/svg"}


def test_the_data_of_a_page() -> None:
    data = data_of(run_text(everything()))
    assert (data["state"], data["verdict"]) == ("failed", "7 of 40 tests failed, 6 of them because of memory")
    assert data["flags"] == "--cudamem --cudamem-leaks=fail"
    assert data["unchecked"] == [
        "NOT CHECKED: 2 budgets: cuda:1 is not measured here",
        "NOT CHECKED: 3 baselines: recorded with torch 2.11, this run has torch 2.13",
    ]
    over = data["findings"][0]
    assert over["limit"] == ["peak", "at most", 48 * MIB, 64 * MIB, 4 * MIB, "call"]
    assert over["t"] == "peak 64.0 MiB above start is over its budget of 48.0 MiB by 16.0 MiB (cuda:0)"
    leaked = next(cause for cause in data["causes"] if cause["k"] == "leak" and cause["findings"] == 2)
    assert leaked["tests"] == ["test_a.py::test_leak", "test_a.py::test_leak_too"]
    assert json.loads(leaked["known"])["bytes"] == 12 * MIB
    (grown,) = [one["change"] for one in data["findings"] if "change" in one]
    assert grown[:4] == ["requested", [8 * MIB, 8 * MIB], [14 * MIB, 14 * MIB], MIB // 10]
    assert grown[4][1] == [
        "project/mlp.py::Mlp.forward",
        "project/attention.py:88 in Attention.forward",
        None,
        MIB,
        3 * MIB,
    ]
    numbers = {one["id"]: one["m"][0][2:] for one in data["tests"] if one.get("m")}
    assert numbers["test_b.py::test_passes[2]"] == [
        {"requested": [2 * MIB, 2 * MIB]},
        {"requested": [3 * MIB, 4 * MIB]},
    ]
    (ring,) = [one["cycle"] for one in data["findings"] if "cycle" in one]
    assert ring[0] == ring[-1].replace("Model", "Model.__dict__['head']")
    chains = next(one["chains"] for one in data["findings"] if "chains" in one)
    assert chains[0][2:4] == ["module project.cache", "module"]
    assert [step[0] for step in chains[0][4]] == ["_CACHE", "['layer0']", "[0]"]


def test_a_page_from_a_file_is_that_of_the_run(tmp_path: Path) -> None:
    run = everything()
    write_json(run, tmp_path / "a.json")
    write_html(run, tmp_path / "a.html")
    assert main(["report", str(tmp_path / "a.json"), "--html", str(tmp_path / "b.html")]) == 0
    assert (tmp_path / "b.html").read_text() == (tmp_path / "a.html").read_text()
    assert read_json(tmp_path / "a.json") == run


@pytest.mark.parametrize(
    ("run", "state", "verdict"),
    [
        (RunRecord(), "nothing", "Nothing was measured"),
        (RunRecord(tests=(record("a", "passed"),)), "passed", "No fault: 1 test"),
        (
            RunRecord(tests=(record("a", "passed"),), unchecked={Unchecked("baseline", "x"): 1}),
            "partly",
            "No fault in 1 test, but not everything was checked",
        ),
        (RunRecord(tests=(record("a", "failed"),)), "failed", "1 of 1 test failed"),
        (RunRecord(tests=(record("a", "failed", leak()),)), "failed", "1 of 1 test failed because of memory"),
        (RunRecord(findings=(leak(), cycle())), "failed", "2 faults of the run itself"),
        (RunRecord(failures=("interrupted",)), "failed", "The run failed"),
    ],
)
def test_the_verdict(run: RunRecord, state: str, verdict: str) -> None:
    assert (run_data(run)["state"], run_data(run)["verdict"]) == (state, verdict)


def failing(number: int) -> RunRecord:
    curves = (curve(400, 8, 200),)
    findings = (over_budget(), leak(), cycle(), regression())
    tests = tuple(
        record(f"tests/some/folder/test_{one % 50}.py::test_case[{one}]", "failed", findings[one % 4], curves=curves)
        for one in range(number)
    )
    return RunRecord(Environment(("cuda:0 (NVIDIA H100)",), "2.13.0", "native"), tests)


@pytest.mark.slow
def test_a_thousand_failing_tests_stay_below_5_mb(figure: Callable[[str], None]) -> None:
    made = run_text(failing(1000))
    assert len(made.encode()) <= 5 * MB
    data = data_of(made)
    assert len(data["curves"]) == 1000
    assert "dropped" not in data
    first = data["curves"]["0"][0]
    assert len(first["moments"]) <= 25
    assert max(totals_of(first)) == max(curve(400, 8, 200).totals)
    figure(f"a page of 1,000 failing tests with curves: {len(made.encode()) / MB:.1f} MB")


def totals_of(data: dict[str, Any]) -> list[int]:
    read: Curve = read_curve(data, "", [Stack()] * 10_000)
    return read.totals


def test_a_few_failing_tests_keep_every_point() -> None:
    data = run_data(failing(12))
    assert {len(one["moments"]) for curves in data["curves"].values() for one in curves} == {400}


def test_curves_that_have_no_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudamem_testing.report.page.MOST_BYTES", 0)
    monkeypatch.setattr("cudamem_testing.report.page.LEAST_FOR_CURVES", 30_000)
    data = run_data(failing(40))
    kept = len(data["curves"])
    assert 0 < kept < 40
    assert data["dropped"] == f"the memory over time of {40 - kept} tests is left out: the page would be too large"


def test_five_thousand_tests(figure: Callable[[str], None]) -> None:
    tests = tuple(
        record(f"tests/test_{one % 90}.py::test_case[{one}]", "passed", peak=one * 1000) for one in range(5000)
    )
    began = time.process_time()
    made = run_text(RunRecord(Environment(("cuda:0 (NVIDIA H100)",), "2.13.0", "native"), tests))
    took = time.process_time() - began
    assert len(made.encode()) <= 5 * MB
    assert took < 5
    figure(f"a page of 5,000 tests: {len(made.encode()) / MB:.1f} MB")


def test_names_of_10_000_characters_are_there_once_in_full() -> None:
    assert run_text(everything()).count(LONG) <= 2


def test_two_runs_on_one_page() -> None:
    before = RunRecord(
        tests=(record("a", "passed", peak=4 * MIB), record("gone", "passed"), record("b", "error", leak())),
        environment=Environment(("cuda:0 (NVIDIA H100)",), "2.13.0", "native"),
    )
    after = before._replace(
        tests=(record("a", "passed", peak=6 * MIB), record("new", "passed"), record("b", "error", cycle()))
    )
    data = data_of(compare_text(before, after))["compared"]
    assert data["rows"] == [["a", "cuda:0", "requested", [4 * MIB] * 2, [6 * MIB] * 2, 2 * MIB, 0]]
    assert (data["gone"], data["added"]) == (["gone"], ["new"])
    assert [(text.partition(" |")[0], old, new) for text, _, _, old, new in data["causes"]] == [
        ("project.Model .head", None, [1, 4 * MIB]),
        ("project/attention.py::Attention.forward", [1, 12 * MIB], None),
    ]
    assert data["places"] == {"a": [["project/a.py::f", 4 * MIB, 6 * MIB]]}


def test_the_memory_over_time_of_both_runs() -> None:
    def run(*tests: TestRecord) -> RunRecord:
        return RunRecord(tests=tests)

    alike, other = curve(40, 3), replace(curve(30, 3), by="category")
    before = run(
        record("gone", "failed", curves=(alike,)),
        record("a", "passed", curves=(curve(50, 3), other)),
        record("c", "passed", curves=(alike,)),
    )
    after = run(record("new", "passed", curves=(alike,)), record("a", "failed", curves=(alike,)), record("c", "passed"))
    curves = data_of(compare_text(before, after))["curves"]
    assert sorted(curves) == ["0", "1", "before 1"]
    (earlier,) = curves["before 1"]  # that of a category has no partner
    assert (earlier["events"], earlier["live"]) == (50, [])
    assert curves["1"][0]["live"] != []


def test_two_reports_become_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, peak in (("a", 4), ("b", 6)):
        write_json(RunRecord(tests=(record("t", "passed", peak=peak * MIB),)), tmp_path / f"{name}.json")
    a, b, out = (str(tmp_path / name) for name in ("a.json", "b.json", "c.html"))
    assert main(["compare", a, b, "--html", out]) == 0
    assert main(["compare", a, b, "--html", out, "--fail-on", "requested:1%"]) == 1
    assert capsys.readouterr().out == f"written to {out}\n" * 2
    (row,) = data_of(Path(out).read_text())["compared"]["rows"]
    assert row[-1] == 1
