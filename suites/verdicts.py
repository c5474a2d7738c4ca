"""``python -m suites.verdicts``: run the zoo, compare every verdict with what it must be, and write docs/verdicts.md.

Each module of the zoo runs in a process of its own, so that what its cases leave behind dies with it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from cudamem_testing.model.findings import Finding, Severity
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.report.files import read_json
from fixtures.zoo import DEVICE, MODULES, Case, Expect, cases

ROOT = Path(__file__).parents[1]
CONFTEST = """\
import pytest
from fixtures import zoo


def pytest_sessionfinish():
    zoo.end()
"""


@dataclass(frozen=True)
class Outcome:
    """What a case gave: its findings, and what is wrong with them or with its controls."""

    case: Case
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]


def runs_here(case: Case) -> bool:
    """Whether the device of this run is the one that the case needs."""
    return case.needs == "cpu" or case.needs == ("cuda" if DEVICE.startswith("cuda") else "cpu only")


def run_module(name: str) -> list[Outcome]:
    """Run the cases of one module and their controls; those with other options in another process."""
    outcomes: list[Outcome] = []
    wanted = sorted(filter(runs_here, cases(name)), key=lambda case: case.options)
    for options, some in groupby(wanted, key=lambda case: case.options):
        chosen = [*some]
        record, text = _run(name, chosen, options)
        outcomes += [outcome(case, record, text) for case in chosen]
    return outcomes


def outcome(case: Case, run: RunRecord, text: str = "") -> Outcome:
    """Compare what a run found with what the case expects."""
    tests = [test for test in run.tests if _name_of(test) == _names(case)[0]]
    if not tests:
        return Outcome(case, (), (f"{case.key}: did not run\n{text}",))
    findings = [finding for test in tests for finding in test.findings]
    problems = [*_compare(case, findings)]
    for name in _names(case)[1:]:
        for test in (test for test in run.tests if _name_of(test) == name):
            wrong = [finding for finding in test.findings if finding.severity is not Severity.NOTE]
            problems += [f"{case.key}: control {name}: {finding}" for finding in wrong]
            if test.outcome == "error":
                problems.append(f"{case.key}: control {name}: {test.outcome}")
        if not any(_name_of(test) == name for test in run.tests):
            problems.append(f"{case.key}: control {name} did not run")
    return Outcome(case, tuple(findings), tuple(problems))


def _compare(case: Case, findings: Sequence[Finding]) -> Iterator[str]:
    rest = [*findings]
    for expect in case.expected:
        matching = [finding for finding in rest if _shortfall(case, expect, finding) is None]
        if len(matching) != expect.count:
            told = [f"{_shortfall(case, expect, finding)} in:\n{finding}" for finding in rest] or ["nothing was found"]
            yield f"{case.key}: expected {expect.count} x {expect.kind} {expect.verdict}: " + "\n".join(told)
            return
        rest = [finding for finding in rest if finding not in matching]
    for finding in rest:
        yield f"{case.key}: was not expected ({finding.kind.value}, {finding.verdict.value}): {finding}"


def _shortfall(case: Case, expect: Expect, finding: Finding) -> str | None:
    """How a finding differs from what is expected."""
    text = str(finding)
    mentions = [piece.format(line=case.allocated[0] if case.allocated else "") for piece in expect.mentions]
    line = (finding.allocated or "").partition(" in ")[0]
    checks = (
        ("kind", expect.kind, finding.kind.value, expect.kind == finding.kind.value),
        ("verdict", expect.verdict, finding.verdict.value, expect.verdict == finding.verdict.value),
        ("severity", expect.severity, finding.severity.value, expect.severity == finding.severity.value),
        ("bytes", expect.bytes, finding.bytes, expect.bytes in (None, finding.bytes)),
        ("holder", expect.holder, finding.holder, (expect.holder or "") in (finding.holder or "")),
        ("line", case.allocated, line, not expect.line or not case.allocated or line in case.allocated),
        ("text", mentions, text, all(piece in text for piece in mentions)),
    )
    return next((f"{name} is {found!r}, not {wanted!r}" for name, wanted, found, right in checks if not right), None)


def _run(module: str, chosen: Sequence[Case], options: Iterable[str]) -> tuple[RunRecord, str]:
    lines = [f"from fixtures.zoo import {module} as zoo"]
    for case in chosen:
        bodies = (case.body, *case.controls)
        lines += [f"{name} = zoo.{body.__name__}" for name, body in zip(_names(case), bodies, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder).resolve()
        (path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        (path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
        (path / f"test_{module}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
        report = path / "report.json"
        arguments = ["--cudamem", f"--cudamem-device={DEVICE}", f"--cudamem-json={report}", *options]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "cudamem", "-p", "no:cacheprovider", *arguments]
        environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=path, env=environ, capture_output=True, text=True, check=False, timeout=240)
        text = done.stdout + done.stderr
        return (read_json(report) if report.exists() else RunRecord()), text


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m suites.verdicts", description=__doc__)
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(MODULES)}; all")
    options = parser.parse_args(arguments)
    outcomes = [one for name in options.modules or MODULES for one in run_module(name)]
    for one in outcomes:
        for finding in one.findings or (None,):
            where = "-" if finding is None else finding.allocated
            print(
                f"{one.case.key:4} {'' if finding is None else finding.verdict.value:18} {where}\n        {finding and finding.holder}"
            )
    problems = [problem for one in outcomes for problem in one.problems]
    print("\n".join(problems))
    print(f"{len(outcomes)} cases, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
