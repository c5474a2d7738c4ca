"""The zoo of leaks: every case gives its verdict, line, holder and bytes; every control gives nothing."""

from __future__ import annotations

import pytest

from cudamem_testing.leaks.findings import anchor
from cudamem_testing.model.findings import Verdict
from fixtures.zoo import DEVICE, MODULES, cases
from suites.verdicts import PAGE, document, run_module, runs_here


@pytest.mark.subprocess
@pytest.mark.parametrize("module", [name for name in MODULES if any(map(runs_here, cases(name)))])
def test_verdicts(module: str) -> None:
    problems = [problem for outcome in run_module(module) for problem in outcome.problems]
    assert not problems, "\n".join(problems)


def test_the_zoo_is_as_large_as_promised() -> None:
    leaks = [case for case in cases() if any(expect.kind == "leak" for expect in case.expected)]
    assert {f"R{number}" for number in range(1, 16)} | {"Y6"} <= {case.key for case in cases()}
    assert len(leaks) >= 16 + 40
    assert len({case.title for case in cases()}) == len(cases())


def test_every_case_names_its_line() -> None:
    without = [case.key for case in cases() if any(expect.line for expect in case.expected) and not case.allocated]
    assert without in ([], ["R13"])


def test_the_page_of_verdicts_is_current() -> None:
    if DEVICE != "cpu":
        pytest.skip("the page is written on a CPU")
    assert PAGE.read_text(encoding="utf-8") == document(cases()), "run: make verdicts"


def test_the_page_has_every_anchor() -> None:
    headings = {line[3:] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("## ")}
    assert {verdict.value for verdict in Verdict} <= headings
    assert all(anchor(verdict) == verdict.value.lower().replace(" ", "-").replace("+", "") for verdict in Verdict)
