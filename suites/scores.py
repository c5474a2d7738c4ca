"""How often what the zoos plant is found, and how often a finding is right: recall and precision by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

from cudamem_testing.graphs.lint import lint
from cudamem_testing.graphs.session import GraphCapture
from cudamem_testing.model.findings import Finding
from cudamem_testing.show.tables import Column, Table
from fixtures.zoo import Case, Expect, graphs, graphs_lint
from suites.graphs.fake import FakeBackend

ROOT = str(Path(__file__).parents[1])
LINT, ASSERTIONS = "lint of graphs", "assertions on graphs"
_COLUMNS = ("kind", "faults", "found", "recall", "wrong", "precision")


@dataclass(frozen=True)
class Score:
    """Faults that were planted, how many were found as they must be, and findings beside these."""

    planted: int = 0
    found: int = 0
    wrong: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(self.planted + other.planted, self.found + other.found, self.wrong + other.wrong)

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of a row: faults, found, recall, wrong, precision."""
        recall, precision = _share(self.found, self.planted), _share(self.found, self.found + self.wrong)
        return f"{self.planted}", f"{self.found}", recall, f"{self.wrong}", precision


Scores = Mapping[str, Score]


def _share(part: int, whole: int) -> str:
    """Per cent, rounded down: only all of them are 100 %."""
    return f"{100 * part // whole} %" if whole else "-"


def added(every: Iterable[Scores]) -> dict[str, Score]:
    """The sum of scores, by kind, in alphabetical order."""
    found: dict[str, Score] = {}
    for scores in every:
        for kind, score in scores.items():
            found[kind] = found.get(kind, Score()) + score
    return dict(sorted(found.items()))


def of_case(
    case: Case, findings: Sequence[Finding], wrong: Sequence[Finding], matches: Callable[[Expect, Finding], bool]
) -> dict[str, Score]:
    """The score of a case: of its ``findings`` those that match, and what was ``wrong`` in its controls."""
    rest, scores = [*findings], list[Scores]()
    for expect in case.expected:
        matching = [finding for finding in rest if matches(expect, finding)]
        scores.append({expect.kind: Score(expect.count, min(len(matching), expect.count))})
        rest = [finding for finding in rest if finding not in matching[: expect.count]]
    scores += [{finding.kind.value: Score(wrong=1)} for finding in (*rest, *wrong)]
    return added(scores)


def promised(every: Sequence[Case]) -> dict[str, Score]:
    """What a run on the CPU must score: all that is planted is found, and nothing else."""
    expected = (expect for case in every if case.needs != "cuda" for expect in case.expected)
    planted = ({expect.kind: Score(expect.count, expect.count)} for expect in expected)
    linted, asserted = len(graphs_lint.CASES), len(_without_a_card())
    return {**added(planted), LINT: Score(linted, linted), ASSERTIONS: Score(asserted, asserted)}


def _without_a_card() -> list[graphs.GraphCase]:
    return [case for case in graphs.CASES.values() if case.needs != "cuda"]


def of_graphs() -> dict[str, Score]:
    """Run the zoos of CUDA graphs: the lint on the CPU, assertions on a backend without a card."""
    linted = asserted = Score()
    for fault in graphs_lint.CASES.values():
        found = lint(fault.body, fault.arguments("cpu"), root=ROOT).findings
        right = [
            one
            for one in found
            if (f"{one.rule.value}: {one.operation}", one.place.source[-7:]) == (fault.expect, "# found")
        ]
        beside = sum(len(lint(clean, fault.arguments("cpu"), root=ROOT).findings) for clean in fault.controls)
        linted += Score(1, min(len(right), 1), len(found) - min(len(right), 1) + beside)
    for case in _without_a_card():
        said, *clean = [*_said(case)]
        asserted += Score(1, int(case.expect in said), sum(map(bool, clean)))
    return {LINT: linted, ASSERTIONS: asserted}


def _said(case: graphs.GraphCase) -> Iterator[str]:
    """What is raised by the fault and by each of its controls."""
    with (
        mock.patch("cudamem_testing.graphs.capture.collect_garbage"),
        mock.patch("cudamem_testing.graphs.callables.collect_garbage"),
    ):
        for body in (case.body, *case.controls):
            torch.manual_seed(0)
            session, said = GraphCapture(FakeBackend(), root=ROOT, owner="this test"), ""
            with suppress(BaseException):
                try:
                    body(session, "cpu")
                except Exception as error:
                    said = str(error) or type(error).__name__
            session.close()
            yield said


def table(scores: Scores) -> Table:
    """A row for each kind."""
    columns = (Column("kind"), *(Column(name, "right") for name in _COLUMNS[1:]))
    return Table(columns, tuple((kind, *score.cells) for kind, score in scores.items()))


def section(scores: Scores, every: Sequence[Case]) -> list[str]:
    """The section of docs/verdicts.md."""
    here = [case for case in every if case.needs != "cuda"]
    clean = sum(len(case.controls) + (not case.expected) for case in here)
    return [
        "",
        "## How often this is right",
        "",
        f"Programs with a fault, by kind of finding, run on the CPU; {clean} clean programs run beside them. The last",
        "rows are the zoos of [CUDA graphs](graphs.md), without a card. A fault is found if the finding has the kind,",
        "verdict, severity, holder, line and bytes that it must have. All other findings are wrong, and so are all",
        "findings of clean programs. `make test-all` fails for each fault that is missed and for each of these.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"| --- {'| ---: ' * (len(_COLUMNS) - 1)}|",
        *(f"| {' | '.join((kind, *score.cells))} |" for kind, score in scores.items()),
    ]
