"""Shards judged together: what one run says of the same tests, and nothing that no shard has looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.__main__ import main
from cudamem_testing.model.causes import causes
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Standing, Verdict
from cudamem_testing.model.records import Environment, RunCoverage, RunRecord, TestRecord, Unseen
from cudamem_testing.model.windows import Window
from cudamem_testing.records.known import KnownFinding, evidence_of, judged, named, render, unseen
from cudamem_testing.report.merge import judge, merge_runs, unseen_by_all
from cudamem_testing.report.report_files import read_json, write_json

CPU, CARD = Device("cpu"), Device("cuda", 0)
MIB = 2**20
KINDS = ("cycle", "leak")
NAME = "known.jsonl"


def leak(cause: str, size: int, device: Device = CPU, kind: Kind = Kind.LEAK) -> Finding:
    return Finding(kind, Verdict.REACHABLE, Severity.FAIL, Reported("m"), size, device, cause=f"{kind.value} | {cause}")


def ran(nodeid: str, *findings: Finding, device: Device = CPU) -> TestRecord:
    outcome = "error" if any(finding.severity is Severity.FAIL for finding in findings) else "passed"
    return TestRecord(nodeid, outcome, windows=(Window("call", device),), findings=findings)


def known(cause: str, size: int, *tests: str, device: str = "cpu", kind: str = "leak") -> KnownFinding:
    return KnownFinding(f"{kind} | {cause}", device, size, tests)


def lines(*some: KnownFinding) -> dict[tuple[str, str], KnownFinding]:
    return {line.key: line for line in some}


def shard(*tests: TestRecord, paths: tuple[str, ...] = (".",), left_out: tuple[str, ...] = ()) -> RunRecord:
    return RunRecord(Environment(("cpu",)), tests, extent=RunCoverage(paths, left_out, KINDS))


def everywhere(file: str) -> bool:
    return True


FILES = ("a/test_a.py", "a/test_b.py", "test_c.py")
TESTS = st.lists(
    st.tuples(
        st.sampled_from(FILES),
        st.lists(
            st.tuples(st.sampled_from("xyz"), st.integers(1, 4), st.sampled_from([Kind.LEAK, Kind.CYCLE])), max_size=2
        ),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=8,
)
KNOWN = st.lists(
    st.tuples(
        st.sampled_from("wxyz"),
        st.integers(1, 4),
        st.sampled_from(FILES),
        st.integers(0, 9),
        st.sampled_from(["leak", "cycle"]),
    ),
    max_size=4,
)


@given(TESTS, KNOWN, st.booleans())
def test_shards_say_what_one_run_says(
    tests: list[tuple[str, list[tuple[str, int, Kind]], int]],
    on_record: list[tuple[str, int, str, int, str]],
    at_once: bool,
) -> None:
    """Also where the shards judged with the file themselves (``at_once``), as they do on CI.

    A test whose findings are all known passes there; where it was not judged it failed because of its findings alone.
    """
    file = lines(
        *(known(cause, size * MIB, f"{place}::test_{n}", kind=kind) for cause, size, place, n, kind in on_record)
    )
    records = []
    for n, (place, found, at) in enumerate(tests):
        findings = [leak(cause, size * MIB, kind=kind) for cause, size, kind in found]
        if at_once:
            findings = [judged(finding, file, NAME) for finding in findings]
        records.append((at, ran(f"{place}::test_{n}", *findings)))
    ids = {record.nodeid for _, record in records}
    whole = shard(*(record for _, record in sorted(records, key=lambda pair: pair[0])))
    one = judge(whole, file, NAME)
    runs = []
    for number in range(3):
        mine = [record for at, record in records if at == number]
        runs.append(shard(*mine, left_out=tuple(sorted(ids - {record.nodeid for record in mine}))))
    merged = judge(merge_runs(runs), file, NAME)
    assert merged == one
    assert causes(merged) == causes(one)
    assert {line.key for line in unseen_by_all(runs, file, everywhere)} == {
        line.key for line in unseen(file, causes(one), evidence_of(whole, everywhere))
    }


def test_findings_are_judged_once() -> None:
    file = lines(known("x", MIB), known("y", MIB))
    one = shard(ran("test_a.py::a", leak("x", MIB), leak("y", 3 * MIB), leak("z", 1)))
    merged = judge(one, file, NAME)
    findings = merged.tests[0].findings
    assert [finding.standing for finding in findings] == [Standing.KNOWN, Standing.LARGER, None]
    assert findings[0] == judged(leak("x", MIB), file, NAME)
    assert judge(merged, file, NAME) == judge(merged, {}, NAME) == merged


LINE = known("old", MIB, "test_a.py::a", "test_b.py::b")
A, B = ran("test_a.py::a"), ran("test_b.py::b")


@pytest.mark.parametrize(
    ("runs", "gone"),
    [
        ([shard(A, left_out=(B.nodeid,))], False),
        ([shard(A, left_out=(B.nodeid,)), shard(B, left_out=(A.nodeid,))], True),
        ([shard(A, paths=("test_a.py",)), shard(B, paths=("test_b.py",))], True),
        ([shard(A, paths=("test_a.py",)), shard(B, paths=())], False),  # the second one did not come to its end
        ([shard(A, paths=("test_a.py",)), shard(B, left_out=("test_b.py::other",))], False),
        ([shard(A, left_out=(B.nodeid,)), shard(B._replace(outcome="skipped"), left_out=(A.nodeid,))], False),
        ([shard(A, left_out=(B.nodeid,)), shard(B, left_out=(A.nodeid,))._replace(extent=RunCoverage())], False),
        ([shard(A, left_out=(B.nodeid,)), shard(ran("test_b.py::b", leak("old", 1)), left_out=(A.nodeid,))], False),
        # A file or a class that skipped itself or could not be collected, in one shard or in both:
        ([shard(A, left_out=("test_b.py",)), shard(B, left_out=(A.nodeid,))], True),
        ([shard(A, left_out=("test_b.py::Group",)), shard(B, left_out=(A.nodeid,))], False),
        ([shard(A, left_out=("test_b.py::Group",)), shard(B, ran("test_b.py::Group::b"), left_out=(A.nodeid,))], True),
        ([shard(A, B, left_out=("test_b.py::Group",)), shard(left_out=("test_b.py::Group::b",))], False),
        # A test that may have had more findings of the kind than it shows, and one that may have had others:
        ([shard(A, left_out=(B.nodeid,)), shard(B.but(unjudged=("leak",)), left_out=(A.nodeid,))], False),
        ([shard(A, left_out=(B.nodeid,)), shard(B.but(unjudged=("cycle",)), left_out=(A.nodeid,))], True),
        ([shard(A, B, B.but(unjudged=("leak",), outcome="rerun"))], True),
        ([shard(A, B, ran("test_b.py::c").but(unjudged=("leak",)))], True),
        ([shard(A, ran("test_b.py::c").but(unjudged=("leak",)))], False),  # it may be the one that is gone
    ],
)
def test_unseen_is_reported_if_the_shards_covered_everything(runs: list[RunRecord], gone: bool) -> None:
    assert unseen_by_all(runs, lines(LINE), everywhere) == ([LINE] if gone else [])


def test_each_device_is_asked_for_its_own() -> None:
    """A test that ran on a card alone says nothing of the CPU; a shard of the other device does not spoil it."""
    line = known("old", MIB, A.nodeid, device="cuda")
    card = shard(ran(A.nodeid, device=CARD), left_out=(B.nodeid,))
    assert unseen_by_all([card, shard(B, left_out=(A.nodeid,))], lines(line, LINE), everywhere) == [line]
    assert merge_runs([card, shard(B)]).extent == RunCoverage()
    assert merge_runs([shard(A, left_out=(B.nodeid,)), shard(B, left_out=(A.nodeid,))]).extent == RunCoverage(
        (".",), (), KINDS
    )


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    kept = Path("__cudamem__/known.jsonl")
    kept.parent.mkdir()
    kept.write_bytes(render(lines(LINE, known("x", MIB))))
    write_json(shard(ran(A.nodeid, leak("x", MIB)), left_out=(B.nodeid,)), Path("1.json"))
    write_json(shard(B, left_out=(A.nodeid,)), Path("2.json"))
    assert main(["merge", "1.json", "-o", "all.json"]) == 1
    assert read_json(Path("all.json")).notes == ()
    capsys.readouterr()
    assert main(["merge", "1.json", "2.json", "-o", "all.json"]) == 1  # the test failed where it ran
    assert read_json(Path("all.json")).unseen == Unseen("merge --prune", ("leak | old (cpu)",))
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "measured 2 tests on cpu",
        "note: 1 known cause was not seen (merge --prune drops what is gone):",
        "  leak | old (cpu)",
    ]
    main(["merge", "1.json", "2.json", "-o", "all.json", "--prune"])
    assert read_json(Path("all.json")).notes == (f"known findings: 1 dropped ({kept} was written)",)
    assert kept.read_bytes() == render(lines(known("x", MIB)))
    kept.write_text("[]", encoding="utf-8")
    assert main(["merge", "1.json", "-o", "none.json"]) == 2
    assert capsys.readouterr().err == f"error: {kept}:1: is no object\n"
    assert not Path("none.json").exists()
    assert main(["merge", "1.json", "-o", "none.json", "--known-file", "gone.jsonl"]) == 2


def test_what_shards_did_not_see_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the merge, with its own flag; other notes stay, and a note of two shards is one."""
    monkeypatch.chdir(tmp_path)
    for number, old in enumerate(("old", "other"), 1):
        unseen_here = named([known(old, MIB), LINE], "--cudamem-prune")
        run = shard(A, B)._replace(unseen=unseen_here, notes=("the build took 5 s",))
        write_json(run, Path(f"{number}.json"))
    Path("__cudamem__").mkdir()
    Path("__cudamem__/known.jsonl").write_bytes(render(lines(LINE)))
    command = ["merge", "1.json", "2.json", "-o"]
    assert main([*command, "all.json"]) == 0
    left = Unseen("merge --prune", ("leak | old (cpu)",))
    notes = ("the build took 5 s", "2 tests in more than one report")
    assert (read_json(Path("all.json")).notes, read_json(Path("all.json")).unseen) == (notes, left)
    assert "--cudamem-prune" not in capsys.readouterr().out
    assert main(["merge", "all.json", "-o", "again.json"]) == 0
    assert (read_json(Path("again.json")).notes, read_json(Path("again.json")).unseen) == (notes, left)
    assert main([*command, "all.json", "--prune"]) == 0
    notes = (*notes, "known findings: 1 dropped (__cudamem__/known.jsonl was written)")
    assert read_json(Path("all.json")).notes == notes
