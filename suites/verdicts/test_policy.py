"""The policy of a run: what known findings, an update, a first use and an audit do to one test's findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.edges import Kind as Edge
from cudamem_testing.model.facts import Allocation, Reported, Retained, RetainedBlock
from cudamem_testing.model.findings import Finding, Kind, Severity, Standing, Verdict
from cudamem_testing.model.references import Reach
from cudamem_testing.model.remarks import Remark
from cudamem_testing.model.settings import Settings
from cudamem_testing.records.store import RecordError
from cudamem_testing.show.places import KNOWN
from cudamem_testing.verdicts.policy import Policy
from suites.made import path

CAUSE = "leak | reachable | a.py::f | module a > KEPT (list)[*]"
LEAK = Finding(Kind.LEAK, Verdict.REACHABLE, Severity.FAIL, Reported("m"), 1024, Device("cpu"), cause=CAUSE)
NOTE = replace(LEAK, severity=Severity.NOTE)
LINE = b'{"cause": "%s", "device": "cpu", "bytes": 1024, "tests": ["t.py::test"], "reason": ""}\n' % CAUSE.encode()
SETTINGS = Settings(
    on=True,
    enforce=True,
    device="cpu",
    simulated=None,
    leaks="fail",
    cycles=None,
    ignore_below=None,
    ignore=(),
    first_use="fail",
    budget=None,
    stacks=True,
    gpus=None,
    top=0,
    dump=None,
    json=None,
    html=None,
    audit=False,
    known=None,
    baseline="off",
    update=frozenset(),
    prune=False,
    repeat=1,
)


def put(file: Path, content: bytes) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)


def severities(policy: Policy, *findings: Finding) -> list[Severity]:
    return [one.severity for one in policy.judged(findings)]


def test_without_a_file_a_finding_stays_as_it_is(tmp_path: Path) -> None:
    policy = Policy(SETTINGS, tmp_path)
    assert (policy.file, policy.name) == (tmp_path / KNOWN, "__cudamem__/known.jsonl")
    assert (policy.content, policy.lines) == (b"", {})
    assert policy.judged(iter([LEAK, NOTE])) == [LEAK, NOTE]
    assert policy.judged([]) == []


def test_what_the_file_knows_does_not_fail(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_bytes(LINE)
    policy = Policy(SETTINGS.replaced(known=tmp_path / "mine.jsonl"), tmp_path)
    (one,) = policy.judged([LEAK])
    assert (policy.name, one.severity, one.standing) == ("mine.jsonl", Severity.NOTE, Standing.KNOWN)
    assert severities(policy, replace(LEAK, cause=CAUSE.replace("KEPT", "OTHER"))) == [Severity.FAIL]


def test_the_content_that_another_process_has_read_counts(tmp_path: Path) -> None:
    put(tmp_path / KNOWN, LINE)
    assert severities(Policy(SETTINGS, tmp_path, b""), LEAK) == [Severity.FAIL]
    assert severities(Policy(SETTINGS.replaced(known=tmp_path / "gone"), tmp_path, LINE), LEAK) == [Severity.NOTE]


def test_a_run_that_measures_nothing_does_not_read_the_file(tmp_path: Path) -> None:
    put(tmp_path / KNOWN, b"broken")
    assert Policy(SETTINGS.replaced(on=False), tmp_path).lines == {}
    with pytest.raises(RecordError, match=r"__cudamem__/known\.jsonl"):
        Policy(SETTINGS, tmp_path)


def test_an_audit_turns_failures_into_warnings_and_nothing_else(tmp_path: Path) -> None:
    policy = Policy(SETTINGS.replaced(audit=True), tmp_path)
    warned = replace(LEAK, severity=Severity.WARN)
    assert severities(policy, LEAK, warned, NOTE) == [Severity.WARN, Severity.WARN, Severity.NOTE]


def test_an_update_says_of_what_it_records_that_it_does(tmp_path: Path) -> None:
    nowhere = replace(LEAK, cause=None)
    recorded, left = Policy(SETTINGS.replaced(update=frozenset({"known"})), tmp_path).judged([LEAK, nowhere])
    assert (recorded.severity, recorded.standing, recorded.remarks) == (
        Severity.NOTE,
        Standing.KNOWN,
        (Remark.RECORDED,),
    )
    assert left == nowhere
    assert Policy(SETTINGS.replaced(update=frozenset({"baseline"})), tmp_path).judged([LEAK]) == [LEAK]


def test_a_first_use_warns_if_the_project_says_so(tmp_path: Path) -> None:
    holder = path("module a", (Edge.GLOBAL, "TABLE", "dict"))
    fact = Retained((RetainedBlock(1, None, Allocation(), Reach.REACHABLE, holder),), 1)
    first = replace(LEAK, fact=fact)
    warns = Policy(SETTINGS.replaced(first_use="warn"), tmp_path)
    assert [severities(warns, first), severities(warns, first)] == [[Severity.WARN], [Severity.FAIL]]
    assert severities(Policy(SETTINGS, tmp_path), first) == [Severity.FAIL]
    (known,) = Policy(SETTINGS.replaced(first_use="warn"), tmp_path, LINE).judged([first])
    assert (known.severity, known.standing) == (Severity.NOTE, Standing.KNOWN)
