"""``python -m suites.zoo``: run the zoo, compare every verdict with what it must be, and write docs/verdicts.md.

Each module of the zoo runs in a separate process, so that its cases leave nothing behind. ``--together`` starts as few
as there are sets of options, and searches a small heap (see ``suites.heap``).
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from cudamem_testing import simulated_cuda
from cudamem_testing.model.findings import Finding, Severity, Verdict
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.report.report_files import read_json
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.wording.findings import text as text_of
from cudamem_testing.wording.meanings import MEANINGS, sentence
from fixtures.zoo import DEVICE, MODULES, SELECTION, Case, Expect, cases, source_lines
from fixtures.zoo.hints import HINTS
from suites import forked, scores

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "verdicts.md"
_HINTS = dict(HINTS.values())
SETTLING = """
## Settling

Before memory that a test keeps is judged, these steps may free it: the frames of a failed test drop their locals, each
device finishes its work, garbage is collected, and libraries release their workspaces. A note names the step that freed
something. While a stream of any thread captures a CUDA graph only the first step runs, because the others would break
the capture; memory that may be garbage is then `unattributed`.

Garbage is collected only if a block could be garbage. Containers, attributes and closures that held memory of earlier
tests of the run are examined first. If they explain every block, and reference counts prove that nothing else holds it,
that is the verdict: the same that a search of the whole heap would give, in milliseconds.
"""
FIXTURES = """
## Wider fixtures

A fixture of a class, module, package or session is judged when it ends, for what it allocated itself in its setup and
its finalizer. What is still allocated after settling is a leak of the fixture, reported once and by its name, such as
`cudamem: fixture 'model': 512.0 MiB leaked`. `setup_class`, `setUpClass` and similar methods are fixtures too. As with
any error of a finalizer, pytest reports it as an error at the teardown of the test in which the fixture ended, usually
the last one that used it; tests that used it before are not blamed. A fixture whose parameter changes ends in the next
test. `--cudamem-leaks` and `cudamem_ignore` apply to fixtures; a marker applies only to its test.

What a wider fixture undoes at its end belongs to the fixture as well: a cache that it has replaced (with `monkeypatch`,
`mock.patch` or by hand) or that its code clears after the `yield`. Memory that tests add there is a note, `fixture`;
what is still there when the fixture has ended is a leak of the fixture.
"""
CONFTEST = """\
import pytest
from fixtures import zoo


def pytest_sessionfinish():
    zoo.end()
"""
SMALL_HEAP = """
from suites import aside


def pytest_runtest_setup(item):
    if item.path.name.startswith("test_whole_"):
        zoo.SMALL_HEAP.close()
"""
#: Cases whose memory is held by an object that is older than their module: of a library, or of pytest.
WHOLE_HEAP = {"G21", "K4", "M4", "P24", "T15"}


@dataclass(frozen=True)
class Outcome:
    """The result of a case: its findings, and what is wrong with them or with its controls."""

    case: Case
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]
    scores: scores.Scores


def runs_here(case: Case) -> bool:
    """Whether the case can run on the device of this run."""
    return case.needs == "cpu" or case.needs == ("cuda" if DEVICE.startswith("cuda") else "cpu only")


def run_modules(*names: str, small_heap: bool = False) -> list[Outcome]:
    """Run the cases of some modules and their controls; cases with other options in another process.

    With a ``small_heap``, what was imported before the cases is set aside, unless a case needs it.
    """
    outcomes: list[Outcome] = []
    wanted = sorted((one for name in names for one in cases(name) if runs_here(one)), key=lambda case: case.options)
    for options, some in groupby(wanted, key=lambda case: case.options):
        chosen = [*some]
        record, text = _run(chosen, options, small_heap=small_heap)
        outcomes += [outcome(case, record, text) for case in chosen]
    return outcomes


def outcome(case: Case, run: RunRecord, text: str = "") -> Outcome:
    """Compare what a run found with what the case expects."""
    tests = [test for test in run.tests if _name_of(test) == _names(case)[0]]
    if not tests:
        return Outcome(case, (), (f"{case.key}: did not run\n{text}",), _score(case, (), ()))
    findings = [finding for test in tests for finding in test.findings]
    findings += [finding for finding in run.findings if _line(finding) in case.allocated and _fails(finding)]
    problems = [*_compare(case, findings)]
    said = {note for test in tests for note in test.notes}
    problems += [f"{case.key}: not noted: {note}\n{said}" for note in case.notes if note not in said]
    in_controls: list[Finding] = []
    for name in _names(case)[1:]:
        for test in (test for test in run.tests if _name_of(test) == name):
            wrong = [finding for finding in test.findings if finding.severity is not Severity.NOTE]
            in_controls += wrong
            problems += [f"{case.key}: control {name}: {text_of(finding)}" for finding in wrong]
            problems += [f"{case.key}: control {name}: {note}" for note in case.notes and test.notes]
            if test.outcome == "error":
                problems.append(f"{case.key}: control {name}: {test.outcome}")
        if not any(_name_of(test) == name for test in run.tests):
            problems.append(f"{case.key}: control {name} did not run")
    for body in case.controls:
        source, first = source_lines(body)
        lines = {f"zoo/{Path(inspect.getsourcefile(body) or '').name}:{first + n}" for n in range(len(source))}
        wrong = [finding for finding in run.findings if _line(finding) in lines and _fails(finding)]
        in_controls += wrong
        problems += [f"{case.key}: control {body.__name__}: {finding}" for finding in wrong]
    return Outcome(case, tuple(findings), tuple(problems), _score(case, findings, in_controls))


def _score(case: Case, findings: Sequence[Finding], in_controls: Sequence[Finding]) -> scores.Scores:
    return scores.of_case(
        case, findings, in_controls, lambda expect, finding: _shortfall(case, expect, finding) is None
    )


def _line(finding: Finding) -> str:
    return (finding.allocated or "").partition(" in ")[0]


def _fails(finding: Finding) -> bool:
    """Whether a finding of the run itself fails it; warnings at the end of a module have no case."""
    return finding.severity is Severity.FAIL


def _compare(case: Case, findings: Sequence[Finding]) -> Iterator[str]:
    rest = [*findings]
    for expect in case.expected:
        matching = [finding for finding in rest if _shortfall(case, expect, finding) is None]
        if len(matching) != expect.count:
            told = [f"{_shortfall(case, expect, finding)} in:\n{text_of(finding)}" for finding in rest] or [
                "nothing was found"
            ]
            yield f"{case.key}: expected {expect.count} x {expect.kind} {expect.verdict}: " + "\n".join(told)
            return
        rest = [finding for finding in rest if finding not in matching]
    if case.key in _HINTS:
        wanted, hints = _HINTS[case.key], {*map(_hint, findings)} - {None}
        if not any(_is_hint(wanted, hint) for hint in hints or {None}):
            yield f"{case.key}: hint is {hints or None}, not {wanted!r}"
    for finding in rest:
        yield f"{case.key}: was not expected ({finding.kind.value}, {finding.verdict.value}): {text_of(finding)}"


def _shortfall(case: Case, expect: Expect, finding: Finding) -> str | None:
    """How a finding differs from what is expected."""
    text = text_of(finding)
    mentions = [piece.format(line=case.allocated[0] if case.allocated else "") for piece in expect.mentions]
    line = _line(finding)
    checks = (
        ("kind", expect.kind, finding.kind.value, expect.kind == finding.kind.value),
        ("verdict", expect.verdict, finding.verdict.value, expect.verdict == finding.verdict.value),
        ("severity", expect.severity, finding.severity.value, expect.severity == finding.severity.value),
        ("bytes", expect.bytes, finding.bytes, expect.bytes in (None, finding.bytes)),
        ("holder", expect.holder, finding.holder, holds(expect.holder or "", finding.holder or "")),
        ("line", case.allocated, line, not expect.line or not case.allocated or line in case.allocated),
        ("text", mentions, text, all(piece in text for piece in mentions)),
    )
    return next((f"{name} is {found!r}, not {wanted!r}" for name, wanted, found, right in checks if not right), None)


def _hint(finding: Finding) -> str | None:
    """The hint of a finding."""
    found = (line.partition("   hint: ") for line in text_of(finding).splitlines())
    return next((hint for before, word, hint in found if word and not before), None)


def _is_hint(wanted: str | None, found: str | None) -> bool:
    """Whether a hint is the one of the table, in which ``*`` is a number."""
    if wanted is None or found is None:
        return wanted is found
    return re.fullmatch(re.escape(wanted).replace(r"\*", r"[\d_]+"), found) is not None


def holds(wanted: str, found: str) -> bool:
    """Whether a holder line contains a text in which ``*`` is any number."""
    return re.search(re.escape(wanted).replace(r"\*", r"\d+"), found) is not None


def repeat_modules(names: Iterable[str], times: int, *options: str) -> tuple[list[Outcome], RunRecord, str]:
    """Run several copies of each case of some modules, of which later ones use known places, on a small heap.

    Returns the outcomes of the first copies, the record of all, and what was printed.
    """
    wanted = [case for name in names for case in cases(name) if runs_here(case)]
    chosen = [case for case in wanted if not case.options and not _concerns_baselines(case)]
    record, text = _run(chosen, options, times=times, small_heap=True)
    return [outcome(case, record, text) for case in chosen], record, text


def _run(
    chosen: Sequence[Case], options: Iterable[str], *, times: int = 1, small_heap: bool = False
) -> tuple[RunRecord, str]:
    whole = WHOLE_HEAP if small_heap else ()
    modules: dict[str, list[Case]] = {}
    for one in sorted(chosen, key=lambda case: case.key in whole):  # these last: they end the small heap
        modules.setdefault(("whole_" if one.key in whole else "") + _module_of(one), []).append(one)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder).resolve()
        (path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        (path / "conftest.py").write_text(CONFTEST + (SMALL_HEAP if small_heap else ""), encoding="utf-8")
        report = path / "report.json"
        arguments = [
            "--cudamem",
            f"--cudamem-device={SELECTION}",
            f"--cudamem-json={report}",
            "--cudamem-ignore-below=0",
        ]
        arguments += options
        python = forked.python(compiler=small_heap)  # which some cases import
        command = [python, "-m", "pytest", "-q", "-p", "cudamem", "-p", "no:cacheprovider", *arguments]
        packages = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"}
        environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a module is written twice
        environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / ".hypothesis"))  # what it read of the package
        compared = {name: some for name, some in modules.items() if any(map(_concerns_baselines, some))}
        if compared:
            for name, some in compared.items():
                (path / f"test_{name}.py").write_text(_module(name, some, before=True), encoding="utf-8")
            update = [*command, "--cudamem-update=baselines"]
            subprocess.run(update, cwd=path, env=environ, capture_output=True, check=False, timeout=900)
        for name, some in modules.items():
            (path / f"test_{name}.py").write_text(_module(name, some, times=times), encoding="utf-8")
        command += [f"test_{name}.py" for name in modules]  # in this order: some import half of torch
        done = subprocess.run(command, cwd=path, env=environ, capture_output=True, text=True, check=False, timeout=900)
        text = done.stdout + done.stderr
        return (read_json(report) if report.exists() else RunRecord()), text


def _module_of(case: Case) -> str:
    return case.body.__module__.rpartition(".")[2]


def _module(module: str, chosen: Sequence[Case], *, before: bool = False, times: int = 1) -> str:
    """The test module of some cases and their controls; ``before``: the controls in place of the cases."""
    lines = [f"from fixtures.zoo import {module.removeprefix('whole_')} as zoo"]
    for case in chosen:
        bodies = [case.body, *case.controls]
        if before and _concerns_baselines(case):
            bodies[0] = case.controls[0]
        new = before and case.expect is not None and case.expect.verdict == Verdict.NO_BASELINE.value
        names = _names(case)[1:] if new else _names(case)
        for suffix in ("", *(f"_time_{time}" for time in range(2, times + 1))):
            pairs = zip(names, bodies[-len(names) :], strict=True)
            lines += [f"{name}{suffix} = zoo.{body.__name__}" for name, body in pairs]
    return "\n".join(lines) + "\n"


def _concerns_baselines(case: Case) -> bool:
    """Whether the case is compared with a baseline, which its control is."""
    return any(expect.kind == "baseline" for expect in case.expected)


def _name_of(test: TestRecord) -> str:
    """The name in the module that a record is of: a class or a function, without parameters."""
    return test.nodeid.split("::")[1].partition("[")[0]


def _names(case: Case) -> list[str]:
    """The names of the case and of its controls in the test module."""
    bodies = (case.body, *case.controls)
    key = case.key.replace("-", "_")
    return [
        f"{'Test' if isinstance(body, type) else 'test_'}{key}{f'_control{place}' if place else ''}"
        for place, body in enumerate(bodies)
    ]


def document(every: Sequence[Case], scored: scores.Scores) -> str:
    """The text of docs/verdicts.md: a section for each verdict with its meaning and its cases, and how it scored."""
    lines = [
        "# Verdicts",
        "",
        "What each verdict means, its usual causes, and what to do. The tables list small programs with that fault",
        "(`fixtures/zoo`), each tested together with a clean twin that must give no finding. `make verdicts` writes",
        "this page. In the last column, `*` is a number that depends on what ran before.",
    ]
    for verdict in Verdict:
        meaning = MEANINGS[verdict]
        lines += ["", f"## {verdict.value}", "", f"{sentence(meaning.text)} {meaning.outcome}", "", "Usual causes:", ""]
        lines += [f"- {cause}" for cause in meaning.causes]
        lines += ["", "What to do:", "", *(f"- {fix}" for fix in meaning.fixes)]
        lines += _table([case for case in every if verdict.value in {expect.verdict for expect in case.expected}])
    lines += [*SETTLING.rstrip().splitlines(), *FIXTURES.rstrip().splitlines()]
    lines += [
        "",
        "## Not measured",
        "",
        "Programs with memory that is not known. A note of the test says so; it fails nothing.",
    ]
    lines += _table([case for case in every if case.notes])
    lines += ["", "## Nothing", "", "Programs that look like faults but are none; they give no finding."]
    lines += _table([case for case in every if not (case.expected or case.notes)])
    lines += ["", "## Where they run", "", "On the CPU and on a CUDA device, except these:", ""]
    lines += [f"- on a CUDA device only: {_keys(case for case in every if case.needs == 'cuda')}"]
    lines += [f"- on the CPU only, because {why}: {keys}" for why, keys in _cpu_only(every).items()]
    lines += scores.section(scored, every)
    return "\n".join(lines) + "\n"


def _keys(some: Iterable[Case]) -> str:
    return ", ".join(case.key for case in some)


def _cpu_only(some: Iterable[Case]) -> dict[str, str]:
    """The keys of cases that run on the CPU alone, by the reason for it."""
    reasons = dict.fromkeys(case.why for case in some if case.why)
    return {why: _keys(case for case in some if case.why == why) for why in reasons}


def _table(some: Sequence[Case]) -> list[str]:
    if not some:
        return []
    last = "note" if all(case.notes for case in some) else "held by"
    rows = ["", f"| case | seen in | mechanism | {last} |", "| --- | --- | --- | --- |"]
    for case in some:
        told = [*(expect.holder for expect in case.expected if expect.holder), *case.notes]
        holders = " and ".join(f"`{text}`" for text in told)
        cells = (case.key, case.origin, case.title, holders)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |".replace("|  |", "| |"))
    return rows


def table(outcomes: Iterable[Outcome]) -> Table:
    """One row a finding: what was expected and what was found."""
    rows = []
    for one in outcomes:
        wanted = ", ".join(expect.verdict for expect in one.case.expected) or "nothing"
        mark = "WRONG" if one.problems else "right"
        for finding in one.findings or (None,):
            found = ("nothing", "", "") if finding is None else _told(finding)
            rows.append((one.case.key, mark, wanted, *found))
    names = ("case", "", "expected", "found", "line", "holder")
    return Table(tuple(Column(name, elastic=name == "holder") for name in names), tuple(rows))


def _told(finding: Finding) -> tuple[str, str, str]:
    return finding.verdict.value, (finding.allocated or "").partition(" in ")[0], finding.holder or ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m suites.zoo", description=__doc__)
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(MODULES)} (all, and on the CPU write the page)")
    parser.add_argument("--together", action="store_true", help="modules share processes, and set older objects aside")
    given = parser.parse_args(arguments)
    chosen, every = given.modules, cases()
    if given.together:
        outcomes = run_modules(*(chosen or MODULES), small_heap=True)
    else:
        with ThreadPoolExecutor(max_workers=2) as pool:
            outcomes = [one for some in pool.map(run_modules, chosen or MODULES) for one in some]
    print("\n".join(table(outcomes).lines(160)))
    problems = [problem for one in outcomes for problem in one.problems]
    print(*problems, sep="\n")
    scored = scores.added(one.scores for one in outcomes)
    if not chosen:
        scored |= scores.of_graphs()
    print("\n".join(scores.table(scored).lines(160)))
    controls = sum(len(one.case.controls) for one in outcomes)
    right = sum(1 for one in outcomes if not one.problems)
    print(f"{right} of {len(outcomes)} cases right on {DEVICE}, beside {controls} controls")
    skipped = [case for case in every if not runs_here(case)]
    if skipped and not chosen:
        told = ["the case needs a CUDA device: " + _keys(skipped)] if DEVICE == "cpu" else []
        told = told or [f"{why}: {keys}" for why, keys in _cpu_only(skipped).items()]
        print(f"not run on {DEVICE}:", *told, sep="\n  ")
    if DEVICE == "cpu" and not chosen:  # what a card tells of a few cases differs
        PAGE.write_text(document(every, scored), encoding="utf-8")
        print(f"written: {PAGE.relative_to(ROOT)}")
    return 1 if problems else 0


if __name__ == "__main__":
    # The modules of the zoo allocate as they are imported.
    with simulated_cuda() if SELECTION.startswith("simulated") else nullcontext():
        raise SystemExit(main())
