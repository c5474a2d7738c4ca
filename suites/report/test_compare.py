"""Two reports against each other, shards as one report, and the commands that do so."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.model.baselines import Measured, PeakLine
from cudamem_testing.model.changes import Change, Spread, Tolerance
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.records import Environment, RunRecord, TestRecord
from cudamem_testing.model.windows import Window
from cudamem_testing.records.baselines import BASELINES
from cudamem_testing.report.compare import Compared, ComparedRow, compare_runs
from cudamem_testing.report.merge import merge_runs
from cudamem_testing.report.report_files import read_json, write_json

KIB, MIB = 2**10, 2**20
CPU = Device("cpu")
HERE, OLD = "x86_64, 1 thread, torch 2.13", "x86_64, 1 thread, torch 2.11"


def record(
    name: str, requested: int, allocations: int = 1, environment: str = HERE, outcome: str = "passed"
) -> TestRecord:
    values = {"requested": Spread.of(requested), "allocations": Spread.of(allocations)}
    return TestRecord(
        f"tests/test_x.py::{name}",
        outcome,
        windows=(Window("call", CPU, 0, requested, 0),),
        measured=(Measured(CPU, environment, values, (PeakLine("a.py::f", requested),), ("requested",)),),
    )


def run(*records: TestRecord, torch: str = "2.13.0", notes: tuple[str, ...] = ()) -> RunRecord:
    return RunRecord(Environment(("cpu",), torch, "cpu"), records, notes=notes)


BEFORE = run(
    record("test_same", MIB),
    record("test_more", 100 * MIB, 10),
    record("test_less", 5 * MIB),
    record("test_little", MIB),
    record("test_gone", 1),
    record("test_old", MIB, environment=OLD),
    record("test_old_too", MIB, environment=OLD),
)
AFTER = run(
    record("test_same", MIB),
    record("test_more", 112 * MIB, 12),
    record("test_less", 3 * MIB),
    record("test_little", MIB + KIB, 1),
    record("test_new", 1),
    record("test_old", 3 * MIB),
    record("test_old_too", MIB),
    TestRecord("tests/test_x.py::test_failed", "failed"),
)


def test_what_changed() -> None:
    conditions = {"requested": Tolerance.parse("5%|10MiB"), "allocations": None}
    compared = compare_runs(BEFORE, AFTER, conditions)

    def row(test: str, metric: str, before: int, after: int, slack: int = 0, broken: bool = False) -> ComparedRow:
        return ComparedRow(
            f"tests/test_x.py::{test}", CPU, Change(metric, Spread.of(before), Spread.of(after), slack), broken
        )

    assert compared == Compared(
        (
            row("test_more", "requested", 100 * MIB, 112 * MIB, 10 * MIB, True),
            row("test_less", "requested", 5 * MIB, 3 * MIB, 10 * MIB),
            row("test_little", "requested", MIB, MIB + KIB, 10 * MIB),
            row("test_more", "allocations", 10, 12),
        ),
        4,
        1,
        1,
        {"torch 2.11 to 2.13": 2},
        False,
    )
    assert compared.text().splitlines() == [
        "metric          before      after     change   share  device        test",
        "requested    100.0 MiB  112.0 MiB  +12.0 MiB  +12.0%  cpu     FAIL  tests/test_x.py::test_more",
        "requested      5.0 MiB    3.0 MiB   -2.0 MiB  -40.0%  cpu           tests/test_x.py::test_less",
        "requested      1.0 MiB    1.0 MiB   +1.0 KiB   +0.1%  cpu           tests/test_x.py::test_little",
        "allocations         10         12         +2  +20.0%  cpu           tests/test_x.py::test_more",
        "3 tests changed of 4 compared",
        "1 test passed only in the first report",
        "1 test passed only in the second report",
        "2 tests not compared: torch 2.11 to 2.13 (--across-env compares them)",
        "1 change beyond what is allowed",
    ]
    assert str(compared) == compared.text()
    assert str(compared.rows[0]) == "requested 100.0 MiB 112.0 MiB +12.0 MiB +12.0% cpu FAIL tests/test_x.py::test_more"
    assert compared.markdown(1).splitlines() == [
        "| metric | before | after | change | share | device |  | test |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- | --- |",
        "| requested | 100.0 MiB | 112.0 MiB | +12.0 MiB | +12.0% | cpu | FAIL | `tests/test_x.py::test_more` |",
        "",
        "- 3 tests changed of 4 compared",
        "- 1 test passed only in the first report",
        "- 1 test passed only in the second report",
        "- 2 tests not compared: torch 2.11 to 2.13 (--across-env compares them)",
        "- 1 change beyond what is allowed",
    ]


def test_across_environments() -> None:
    compared = compare_runs(BEFORE, AFTER, {"requested": None}, across=True)
    assert [row.test for row in compared.rows][:2] == ["tests/test_x.py::test_more", "tests/test_x.py::test_less"]
    assert compared.rows[2].test == "tests/test_x.py::test_old"
    assert compared.lines == [
        "4 tests changed of 6 compared",
        "1 test passed only in the first report",
        "1 test passed only in the second report",
        "2 tests compared across: torch 2.11 to 2.13",
    ]


def test_another_number_of_threads_is_no_other_environment() -> None:
    one, four = "x86_64, 1 thread, torch 2.13", "x86_64, 4 threads, torch 2.13"
    runs = [
        RunRecord(
            tests=(TestRecord("t.py::a", "passed", measured=record("a", number, environment=environment).measured),)
        )
        for number, environment in ((5, one), (7, four))
    ]
    compared = compare_runs(*runs, {"requested": None})
    assert [row.change.growth for row in compared.rows] == [2]
    assert compared.lines == ["1 test changed of 1 compared"]


def test_the_same_environment_is_preferred() -> None:
    both = TestRecord("t.py::a", measured=(*record("a", 5, environment=OLD).measured, *record("a", 7).measured))
    other = TestRecord("t.py::a", measured=record("a", 8).measured)
    (row,) = compare_runs(run(both), run(other), {"requested": None}, across=True).rows
    assert (row.change.before, row.change.after) == (Spread(7, 7), Spread(8, 8))


def test_what_is_in_one_report_only(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is held to a tolerance there, and a run that was to be held to one does not pass for it."""
    compared = compare_runs(AFTER, AFTER, {"requested": None, "reserved": None, "segments": None})
    assert compared.lines == ["0 tests changed of 7 compared", "in no test of both reports: reserved, segments"]
    assert main(["compare", "b.json", "b.json", "--fail-on", "reserved:5%"]) == 1
    assert main(["compare", "b.json", "b.json", "--fail-on", "requested:5%"]) == 0
    write_json(RunRecord(), Path("none.json"))
    assert main(["compare", "none.json", "b.json", "--fail-on", "reserved:5%"]) == 0  # all tests are new
    assert main(["compare", "b.json", "b.json", "--fail-on", "peak:5%", "--fail-on", "peak:1KiB"]) == 2
    told = "peak has two tolerances: write 'peak:5%|1KiB', of which the larger one counts"
    assert capsys.readouterr().err == f"error: {told}\n"


def test_tests_that_were_measured_on_different_devices() -> None:
    card = [one.but(device=Device("cuda", 0)) for one in record("test_a", 5).measured]
    there = TestRecord("tests/test_x.py::test_a", "passed", measured=tuple(card))
    compared = compare_runs(run(record("test_a", 5)), run(there), {"requested": None})
    assert compared.lines == [
        "0 tests changed of 0 compared",
        "1 test not compared: measured on different devices",
    ]


def test_equal_reports() -> None:
    compared = compare_runs(AFTER, AFTER, {"requested": Tolerance.parse("0")})
    assert compared.text() == compared.markdown().removeprefix("- ") == "0 tests changed of 7 compared"
    assert compared.broken == ()


def test_shards_as_one_run() -> None:
    fault = Finding(Kind.LEAK, Verdict.REACHABLE, Severity.FAIL, Reported("of the run"))
    first = run(record("test_a", MIB), record("test_b", MIB), notes=("one", "both"))
    second = run(record("test_b", 2 * MIB), record("test_c", MIB), notes=("both",), torch="2.11.0")
    merged = merge_runs([first, second])
    assert merged == RunRecord(
        Environment(("cpu",), "2.13.0", "cpu"),
        (*first.tests, *second.tests),
        notes=(
            "one",
            "both",
            "the reports are of different versions of torch: 2.13.0, 2.11.0",
            "1 test in more than one report",
            "took different amounts in different reports: tests/test_x.py::test_b",
        ),
    )
    assert merge_runs([first]) == first
    assert not merged.failed
    assert run(record("test_a", 1, outcome="failed")).failed
    assert run(record("test_a", 1, outcome="error")).failed
    assert not run(record("test_a", 1, outcome="rerun"), record("test_a", 1)).failed  # repeated until it passed
    assert run(record("test_a", 1, outcome="failed"), record("test_a", 1)).failed  # it passed in another shard
    assert RunRecord(findings=(fault,)).failed


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_x.py").touch()
    write_json(BEFORE, tmp_path / "a.json")
    write_json(AFTER, tmp_path / "b.json")
    return tmp_path


def test_the_command_compare(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a.json", "b.json"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "requested  100.0 MiB  112.0 MiB  +12.0 MiB  +12.0%  cpu     tests/test_x.py::test_more"
    )
    assert main(["compare", "a.json", "b.json", "--fail-on", "requested:5%|20MiB"]) == 0
    assert main(["compare", "a.json", "b.json", "--fail-on", "requested:5%|20MiB", "--fail-on", "allocations:1"]) == 1
    assert main(["compare", "a.json", "b.json", "--fail-on", "requested:50%", "--across-env"]) == 1
    capsys.readouterr()
    assert main(["compare", "a.json", "b.json", "--markdown", "--top=1"]) == 0
    assert capsys.readouterr().out.startswith("| metric | before |")
    assert main(["compare", "a.json", "b.json", "--top=0"]) == 0
    assert capsys.readouterr().out.startswith("3 tests changed of ")
    assert main(["compare", "a.json", "none.json"]) == 2
    assert capsys.readouterr().err == "error: [Errno 2] No such file or directory: 'none.json'\n"
    assert main(["compare", "a.json", "b.json", "--fail-on", "speed:1"]) == 2
    assert capsys.readouterr().err.startswith("error: 'speed:1' is not METRIC:TOLERANCE with a metric of requested, ")
    (reports / "c.json").write_text("[]", encoding="utf-8")
    assert main(["compare", "c.json", "b.json"]) == 2
    assert capsys.readouterr().err == "error: c.json: the top level is no object\n"


def test_the_command_accept(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("tests/__cudamem__/test_x.json")
    assert main(["accept", "b.json", "--baselines"]) == 0
    assert capsys.readouterr().out == f"7 baselines: 7 new\nwritten: {path}\n"
    assert main(["accept", str(reports / "b.json"), "--root", str(reports), "--baselines"]) == 0
    assert capsys.readouterr().out == "7 baselines: 7 the same\n"
    path.write_text("", encoding="utf-8")
    assert main(["accept", "b.json", "--baselines"]) == 1
    assert capsys.readouterr().out == (
        f'not written: {path}:1: does not begin with {{"kind": "baselines", "schema": 2, "entries": [\n'
    )
    assert path.read_text(encoding="utf-8") == ""


def test_accept_writes_where_the_tests_are(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the wrong folder nothing is made, and no report reaches out of the right one."""
    measured = record("test_x", MIB).measured
    places = ("../out/test_x.py", f"{reports}/tests/test_x.py", "none/test_x.py", "tests/test_x.py")
    for folder in ("out", "root/tests", "none"):
        (reports / folder).mkdir(parents=True)
    for file in ("out/test_x.py", "root/tests/test_x.py"):
        (reports / file).touch()
    tests = [TestRecord(f"{place}::test_x", "passed", measured=measured) for place in places]
    write_json(run(*tests, TestRecord("none/test_y.py::test_idle", "passed")), reports / "c.json")
    assert main(["accept", "c.json", "--root", "root", "--baselines"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "1 baseline: 1 new",
        "written: root/tests/__cudamem__/test_x.json",
        "not written for ../out/test_x.py: it does not lie below root",
        f"not written for {reports}/tests/test_x.py: it does not lie below root",
        "not written for none/test_x.py: there is no such file in root",
    ]
    assert [*reports.rglob("__cudamem__")] == [reports / "root/tests/__cudamem__"]


def test_a_test_that_several_shards_ran(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each environment has its entry, and what differs within one is recorded with its spread."""
    write_json(run(record("test_a", 3 * MIB), record("test_b", MIB, environment=OLD)), reports / "c.json")
    write_json(run(record("test_a", 2 * MIB), record("test_b", 2 * MIB)), reports / "d.json")
    main(["merge", "c.json", "d.json", "-o", "e.json"])
    assert main(["accept", "e.json", "--baselines"]) == 0
    entries = BASELINES.read(Path("tests/__cudamem__/test_x.json"))
    assert {key[::2]: entry.values["requested"] for key, entry in entries.items()} == {
        ("test_a", HERE): Spread(2 * MIB, 3 * MIB),
        ("test_b", HERE): Spread.of(2 * MIB),
        ("test_b", OLD): Spread.of(MIB),
    }
    capsys.readouterr()
    assert main(["compare", "e.json", "c.json"]) == 0
    assert capsys.readouterr().out == "0 tests changed of 2 compared\n"


def test_the_command_merge(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", "a.json", "b.json", "-o", "deep/all.json", "--top=1"]) == 1
    assert read_json(reports / "deep/all.json") == merge_runs([BEFORE, AFTER])
    assert capsys.readouterr().out.splitlines()[:4] == [
        "     peak  retained  allocs  test",
        "112.0 MiB         ?       ?  tests/test_x.py::test_more",
        "... 13 more (--cudamem-top=14 shows them)",
        "measured 14 tests on cpu; 1 test without torch",
    ]
    assert main(["merge", "a.json", "a.json", "--output", "twice.json"]) == 0
