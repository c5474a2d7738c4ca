"""The zoo of leaks: every case gives its verdict, line, holder and bytes; every control gives nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.torch_api import nodes
from cudamem_testing.wording.findings import text, title
from fixtures.zoo import DEVICE, MODULES, NOTHING, case, cases
from suites import scores, zoo
from suites.zoo import PAGE, document, holds, run_modules

#: Where what autograd saved holds the memory, which torch up to 2.9 does not show.
HELD_BY_SAVED = {"R2", "R4", "A1", "A2", "A4", "A5", "A12"}
FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
#: Modules that share processes: what most people meet, on the whole heap, and, marked slow, the others, on a small one.
#: Those that import torch's compiler are the last ones: each search reads what is imported later.
TOGETHER = (
    ("leaks",),
    ("leaks_functions", "leaks_modules", "leaks_held", "leaks_storages", "leaks_hostile"),
    ("leaks_autograd", "leaks_cuda", "leaks_compiler"),
    ("distributed",),
    ("leaks_pytest", "cycles", "cycles_finalized", "cycles_whose", "regressions", "recovery"),
)


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "modules",
    [pytest.param(some, marks=() if some == ("leaks",) else pytest.mark.slow, id=some[0]) for some in TOGETHER],
)
def test_verdicts(modules: tuple[str, ...]) -> None:
    outcomes_are_right(run_modules(*modules, small_heap=modules != ("leaks",) and not FULL))


def outcomes_are_right(outcomes: list[zoo.Outcome]) -> None:
    found = {outcome.case.key: outcome.problems for outcome in outcomes if outcome.problems}
    unseen = set() if nodes.shows_saved() else HELD_BY_SAVED
    problems = [problem for key in found.keys() - unseen for problem in found[key]]
    assert not problems, "\n".join(problems)
    for key in found.keys() - {"A4"}:  # its node shows the parameter that it leads to
        assert "does not show what autograd saved: an autograd graph may hold it" in found[key][0]


def test_every_module_is_run_once() -> None:
    assert sorted([*(name for some in TOGETHER for name in some), "leaks_running"]) == sorted(MODULES)


#: Modules of the zoo whose blocks known places can explain, and how many of a hundred questions they must answer. What
#: a running frame, thread or coroutine holds is searched for each time: a fourth is answered, one more or less.
ANSWERED = {"leaks": 70, "leaks_running": 20}
if FULL:
    ANSWERED |= {"leaks_functions": 70, "leaks_modules": 70}


@pytest.mark.slow
@pytest.mark.subprocess
def test_known_places_say_what_a_search_says() -> None:
    """Each case twice in one run: the plugin that runs with them compares every answer with a search of the heap."""
    outcomes, record, output = zoo.repeat_modules(ANSWERED, 2, "-p", "suites.run.both_ways")
    outcomes_are_right(outcomes)
    said = re.findall(r"known places of test_(?:whole_)?(\w+)\.py: (\d+) of (\d+) answered, (\d+) wrong", output)
    assert {name for name, *_ in said} == {*ANSWERED}, output
    assert {wrong for *_, wrong in said} == {"0"}, output
    for name, least in ANSWERED.items():
        answered, asked = (sum(int(one[place]) for one in said if one[0] == name) for place in (1, 2))
        assert answered * 100 >= asked * least, said
    unjudged = [text(one) for test in record.tests for one in test.findings if "could not be judged" in title(one)]
    assert unjudged == []


def test_the_zoo_is_as_large_as_promised() -> None:
    leaks = [case for case in cases() if any(expect.kind == "leak" for expect in case.expected)]
    assert {f"R{number}" for number in range(1, 16)} | {"Y6"} <= {case.key for case in cases()}
    assert len(leaks) >= 16 + 40
    assert len({case.title for case in cases()}) == len(cases())


def test_every_case_names_its_line() -> None:
    without = [case.key for case in cases() if any(expect.line for expect in case.expected) and not case.allocated]
    assert without in ([], ["R13"])


#: Cases that not every version of torch has: there a transform refers to its inverse weakly.
OF_SOME_VERSIONS = {"CL10", "CL12", "CL13"}


def test_the_page_of_verdicts_is_current() -> None:
    if DEVICE != "cpu":
        pytest.skip("the page is written on a CPU")
    absent = OF_SOME_VERSIONS - {case.key for case in cases()}
    lines = PAGE.read_text(encoding="utf-8").splitlines(keepends=True)
    shown = "".join(line for line in lines if line.partition(" |")[0].removeprefix("| ") not in absent)
    made = document(cases(), scores.promised(cases()))
    if absent:  # their number stands in the last section
        shown, made = (text.partition("## How often")[0] for text in (shown, made))
    assert shown == made, "run: make verdicts"


def test_scores_count_what_is_missed_and_what_is_wrong() -> None:
    """Of a case that expects one leak: found, beside another finding; missed; and a finding in its control."""
    expected = next(case for case in cases() if [expect.kind for expect in case.expected] == ["leak"])
    right, other = (Finding(kind, Verdict.REACHABLE, Severity.FAIL, None, 1) for kind in (Kind.LEAK, Kind.CYCLE))

    def score(findings: list[Finding], wrong: list[Finding]) -> dict[str, scores.Score]:
        return scores.of_case(expected, findings, wrong, lambda expect, finding: finding is right)

    found, missed = score([other, right], []), score([], [other, right])
    assert found == {"cycle": scores.Score(wrong=1), "leak": scores.Score(1, 1)}
    assert missed == {"cycle": scores.Score(wrong=1), "leak": scores.Score(1, 0, 1)}
    both = scores.added([found, missed])
    assert both["leak"].cells == ("2", "1", "50 %", "1", "50 %")
    assert both["cycle"].cells == ("0", "0", "-", "2", "0 %")
    assert scores.Score(1000, 999).cells[2] == "99 %"


def test_the_page_has_every_anchor() -> None:
    headings = {line[3:] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("## ")}
    assert {verdict.value for verdict in Verdict} <= headings
    assert all(verdict.anchor == verdict.value.lower().replace(" ", "-").replace("+", "") for verdict in Verdict)


@pytest.mark.parametrize(
    ("wanted", "found", "held"),
    [
        ("KEPT (list)[*].indices", "module a > KEPT (list)[17].indices", True),
        ("KEPT (list)[*].indices", "module a > KEPT (list)[17].values", False),
        ("KEPT (list)[*] > tuple[1]", "module a > KEPT (list)[1] > tuple[0]", False),
        ("KEPT (list)[*]", "module a > KEPT (list)['1']", False),
        ("hook *", "hook of it", False),
        ("", "", True),
    ],
)
def test_a_star_is_a_number(wanted: str, found: str, held: bool) -> None:
    assert holds(wanted, found) is held


@pytest.mark.parametrize(("needs", "why"), [("cpu only", ""), ("cpu", "it is slow")])
def test_what_runs_on_the_cpu_alone_says_why(needs: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"^case Z1: what runs on the CPU alone says why, and nothing else does$"):
        case("Z1", origin="", expect=NOTHING, needs=needs, why=why)


@pytest.mark.parametrize(
    ("device", "told"),
    [
        (
            "cuda",
            [
                "not run on cuda:",
                "  arrays of numpy are in the memory of the CPU: S2, S3, S14, S19",
                "  quantised tensors are made for the CPU: S6",
                "  a limit on a card binds to the segments that it takes next, not to the byte: R15",
                "  gloo exchanges memory of the CPU: DD1, DD2, DF1, DF2, DF3, DT1, DT2, DR1, DR2",
                "  a process that has used CUDA cannot be forked: DN1, DN2, DN3",
            ],
        ),
        (
            "cpu",
            [
                "not run on cpu:",
                "  the case needs a CUDA device: C2, D1, R10, D6, R13, R14, D2, D3, D4, D5, B7, O5",
                "written: docs/page.md",
            ],
        ),
    ],
)
def test_what_a_run_says_and_writes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, device: str, told: list[str]
) -> None:
    """A card writes no page: what it tells of a few cases differs."""
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    for name, value in {"DEVICE": device, "ROOT": tmp_path, "PAGE": page, "run_modules": lambda *names: []}.items():
        monkeypatch.setattr(zoo, name, value)
    monkeypatch.setattr(scores, "of_graphs", lambda: {"lint of graphs": scores.Score(2, 1)})
    assert zoo.main([]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[said.index(f"0 of 0 cases right on {device}, beside 0 controls") + 1 :] == told
    assert page.exists() == (device == "cpu")
    assert device == "cuda" or "| lint of graphs | 2 | 1 | 50 % | 0 | 100 % |" in page.read_text(encoding="utf-8")
