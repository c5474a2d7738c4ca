"""Baselines in a run: recorded, compared, missing, of other environments."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cudamem_testing.__main__ import main
from cudamem_testing.model.changes import Comparison, Spread
from cudamem_testing.model.devices import Device
from cudamem_testing.model.records import Unchecked
from cudamem_testing.model.windows import Window
from cudamem_testing.plugin import keys
from cudamem_testing.records.baselines import parse, render
from cudamem_testing.run.baselines import Baselines
from cudamem_testing.windows.owners import Owner
from cudamem_testing.windows.tracker import Tracker
from cudamem_testing.wording.findings import title
from suites.plugin.inner import KIB
from suites.plugin.recorded import FILE, HERE, SMALL, UPDATE, VERSION, entries, run

RECORD = "(record with --cudamem-update=baselines)"
NONE = f"no baseline {RECORD}"
pytestmark = pytest.mark.usefixtures("one_thread")

TEST = """
    import os
    import pytest, torch

    MORE = int(os.environ.get("MORE", "0"))

    def helper(kib):
        return torch.empty(kib * 256)

    @pytest.mark.memory_baseline
    def test_peak():
        helper(1024), torch.empty(256)
        first = helper(1024 + MORE)
        second = torch.empty(1024 * 256)

    @pytest.mark.memory_baseline(tolerance="10%|1", metrics=("allocations", "peak"))
    @pytest.mark.parametrize("name", ["a::b/c", "ü"])
    def test_counts(name):
        for _ in range(10 + (MORE != 0)):
            helper(2)
        if MORE > 2000:
            helper(2)

    @pytest.mark.memory_baseline(tolerance=0, metrics="retained")
    def test_keeps():
        test_keeps.kept = helper(64 + max(0, MORE))

    @pytest.mark.memory_baseline
    def test_nothing(): pass

    def test_unmarked():
        helper(1024 + MORE)

    def test_unmarked_nothing(): pass
"""


PEAK = {"requested": 2048 * KIB, "top": [["test_it.py::helper", 1024 * KIB], ["test_it.py::test_peak", 1024 * KIB]]}
COUNTS = {"peak": 2 * KIB, "allocations": 10, "top": [["test_it.py::helper", 2 * KIB]]}
COUNTED = ("a::b/c", "\\xfc")
MARKED = {
    "test_peak": PEAK,
    **{f"test_counts[{name}]": COUNTS for name in COUNTED},
    "test_keeps": {"retained": 64 * KIB, "top": [["test_it.py::helper", 64 * KIB]]},
    "test_nothing": {"requested": 0, "top": []},
}


def test_marked_tests_are_recorded_and_compared(run_inner, pytester, monkeypatch):
    inner = run(run_inner, monkeypatch, 0, files=TEST)
    assert inner.last == "7 passed"
    assert f"NOT CHECKED: 5 tests: {NONE}" in inner.summary
    assert not (pytester.path / "__cudamem__").exists()

    inner = run(run_inner, monkeypatch, 0, UPDATE)
    assert inner.last == "7 passed"
    assert [line for line in inner.summary if line.startswith("note")] == [
        "note: 5 baselines: 5 new",
        f"note: written: {FILE}",
    ]
    assert entries(pytester) == MARKED
    before = (pytester.path / FILE).read_bytes()

    inner = run(run_inner, monkeypatch, 0)
    assert inner.last == "7 passed"
    assert not [line for line in inner.summary if line.startswith("note")]
    assert all(not test.findings for test in inner.run.tests)
    assert {name: [*inner.test(name).measured[0].recorded.items()] for name in MARKED} == {
        "test_peak": [("requested", Spread.of(2048 * KIB))],
        **{f"test_counts[{name}]": [("peak", Spread.of(2 * KIB)), ("allocations", Spread.of(10))] for name in COUNTED},
        "test_keeps": [("retained", Spread.of(64 * KIB))],
        "test_nothing": [("requested", Spread.of(0))],
    }

    inner = run(run_inner, monkeypatch, 1500)
    assert inner.last == "1 failed, 6 passed, 1 error"
    assert inner.section("test_peak") == [
        (
            "cudamem: requested 3.5 MiB above start is 1.5 MiB (+73.2%) above its baseline of 2.0 MiB, 64.0 KiB "
            "allowed (cpu)"
        ),
        "grew: +1.5 MiB by test_it.py:7 in helper (empty) <- test_it.py:12, 1.0 MiB -> 2.5 MiB",
        "   | return torch.empty(kib * 256)",
    ]
    assert inner.section("ERROR at teardown of test_keeps") == [
        "cudamem: retained 1.5 MiB is 1.5 MiB (+2343.8%) above its baseline of 64.0 KiB, 0 B allowed (cpu)",
        "still live: 1.5 MiB by test_it.py:7 in helper (empty) <- test_it.py:25",
        "   | return torch.empty(kib * 256)",
    ]
    (finding,) = inner.test("test_peak").findings
    assert (finding.kind.value, finding.verdict.value, finding.severity.value) == ("baseline", "over budget", "fail")
    assert (finding.bytes, finding.allocated, finding.cause) == (
        1500 * KIB,
        "test_it.py:7 in helper",
        "baseline requested",
    )
    assert any(line.startswith("BASELINE test_it.py::test_peak - ") for line in inner.lines)
    assert any(line.startswith("test_it.py B...B...  ") for line in inner.lines)
    assert (pytester.path / FILE).read_bytes() == before

    inner = run(run_inner, monkeypatch, 2500, "-k", "counts")
    assert inner.section("test_counts[a::b/c]") == [
        "cudamem: allocations 12 is 2 (+20.0%) above its baseline of 10, 1 allowed (cpu)",
        "allocations of this run, by line:",
        "   12  test_it.py:7 in helper",
    ]

    inner = run(run_inner, monkeypatch, -200)
    assert inner.last == "7 passed"
    assert inner.run.notes == (
        (
            "1 test now uses less than recorded; record with --cudamem-update=baselines:\n"
            "  test_peak: peak 2.0 -> 1.8 MiB"
        ),
    )
    (finding,) = inner.test("test_peak").findings
    assert (finding.verdict.value, finding.severity.value, finding.bytes) == ("improved", "note", 200 * KIB)

    inner = run(run_inner, monkeypatch, -200, UPDATE)
    start = inner.summary.index("note: 5 baselines: 2 more, 1 less, 2 the same")
    assert inner.summary[start + 1 : start + 4] == [
        "    test_peak: peak 2.0 -> 1.8 MiB",
        "    test_counts[...] x 2: allocations 10 -> 11",
        f"note: written: {FILE}",
    ]
    inner = run(run_inner, monkeypatch, 0, "-k", "peak")
    assert inner.outcomes == {"test_peak": "failed"}


def test_under_cudamem_every_test_can_have_a_baseline(run_inner, pytester, monkeypatch):
    run(run_inner, monkeypatch, 0, "--cudamem", UPDATE, "-k", "unmarked", files=TEST)
    assert entries(pytester) == {
        "test_unmarked": {"requested": 1024 * KIB, "top": [["test_it.py::helper", 1024 * KIB]]}
    }
    assert run(run_inner, monkeypatch, 500, "-k", "unmarked").last == "2 passed, 5 deselected"
    inner = run(run_inner, monkeypatch, 500, "--cudamem", "-k", "unmarked")
    assert inner.outcomes == {"test_unmarked": "failed", "test_unmarked_nothing": "passed"}
    assert run(run_inner, monkeypatch, 500, "--cudamem", "--cudamem-baseline=off", "-k", "unmarked").status == 0
    inner = run(run_inner, monkeypatch, 0, "--no-cudamem", UPDATE)
    assert "cudamem: off (--no-cudamem): 5 tests have a memory marker that was not enforced" in inner.lines
    assert [*entries(pytester)] == ["test_unmarked"]


def test_required(run_inner, monkeypatch):
    inner = run(
        run_inner, monkeypatch, 0, "--cudamem", "--cudamem-baseline=require", "-k", "nothing or unmarked", files=TEST
    )
    assert inner.outcomes == {"test_nothing": "failed", "test_unmarked": "failed", "test_unmarked_nothing": "passed"}
    assert inner.section("test_unmarked") == [
        f"cudamem: no baseline on cpu ({HERE}): --cudamem-update=baselines records one"
    ]
    assert run(run_inner, monkeypatch, 0, "--cudamem", UPDATE, "-k", "nothing or unmarked").status == 0
    inner = run(run_inner, monkeypatch, 0, "--cudamem", "--cudamem-baseline=require", "-k", "nothing or unmarked")
    assert inner.status == 0


def test_a_metric_without_a_baseline_is_noted_or_required(run_inner, pytester, monkeypatch):
    assert run(run_inner, monkeypatch, 0, UPDATE, files=TEST).status == 0
    metrics = 'metrics=("requested", "reserved", "allocations", "retained")'
    files = {
        "test_it.py": TEST.replace(
            "memory_baseline\n    def test_peak", f"memory_baseline({metrics})\n    def test_peak"
        )
    }
    inner = run(run_inner, monkeypatch, 0, files=files)
    assert (inner.status, inner.run.notes) == (0, ())
    assert inner.run.unchecked == {Unchecked("test", f"no baseline of retained, allocations {RECORD}"): 1}
    inner = run(run_inner, monkeypatch, 0, "--cudamem-baseline=require")
    assert [title(finding) for finding in inner.test("test_peak").failing] == [
        f"cudamem: no baseline of {metric} on cpu ({HERE}): --cudamem-update=baselines records one"
        for metric in ("allocations", "retained")
    ]
    assert run(run_inner, monkeypatch, 0, UPDATE).status == 0
    assert entries(pytester)["test_peak"].keys() == {"requested", "retained", "allocations", "top"}
    assert run(run_inner, monkeypatch, 0, "--cudamem-baseline=require").run.notes == ()


def test_a_metric_that_the_device_does_not_have(run_inner, pytester):
    file = """
        import pytest, torch

        @pytest.mark.memory_baseline(metrics="reserved")
        def test_it(): torch.empty(256)
    """
    inner = run_inner(file, UPDATE)
    assert inner.run.unchecked == {Unchecked("test", "no reserved on cpu to compare"): 1}
    assert not (pytester.path / "__cudamem__").exists()
    assert run_inner({}, "--cudamem-baseline=require").last == "1 passed"


def test_other_environments_are_kept_and_named_once(run_inner, pytester):
    run_inner(SMALL, UPDATE)
    path = pytester.path / FILE
    path.write_bytes(render(parse(path, path.read_text().replace(f"torch {VERSION}", "torch 2.1").encode())))
    inner = run_inner({})
    assert inner.last == "2 passed"
    reason = f"recorded with torch 2.1, this run has torch {VERSION} {RECORD}"
    assert inner.run.unchecked == {Unchecked("baseline", reason): 2}
    assert not [one for one in inner.summary if one.startswith("note")]
    for quiet in ("-q", "-qq"):
        inner = run_inner({}, quiet)
        assert inner.section("cudamem summary")[:2] == [
            "measured 2 tests on cpu",
            f"NOT CHECKED: 2 baselines: {reason.partition(' (')[0]}"[:80],
        ]
    old = path.read_text().splitlines()[1:4]
    assert run_inner({}, "--cudamem-baseline=require").last == "2 failed"
    run_inner({}, UPDATE)
    lines = path.read_text().splitlines()
    assert len(lines) == 8
    assert {*old} < {*lines}
    assert run_inner({}, "--cudamem-baseline=require").last == "2 passed"


ONE_TEST = """
    import os
    import pytest, torch

    @pytest.fixture(scope="module", autouse=True)
    def threads():
        before = torch.get_num_threads()
        torch.set_num_threads(int(os.environ["THREADS"]))
        yield
        torch.set_num_threads(before)

    @pytest.mark.memory_baseline
    def test_a(): torch.empty(int(os.environ["KIB"]) * 256)
"""


@pytest.fixture
def with_threads(run_inner, monkeypatch):
    """Run the one test with a number of threads, and let it take so many KiB."""

    def run(threads, kib, *args):
        torch.set_num_threads(threads)
        monkeypatch.setenv("THREADS", str(threads))
        monkeypatch.setenv("KIB", str(kib))
        return run_inner(ONE_TEST, "-q", *args)

    yield run
    torch.set_num_threads(1)


def test_another_number_of_threads_is_compared_all_the_same(with_threads, pytester):
    """Until numbers differ by it: then each number of threads has its own, and others are not checked, and say so."""
    assert with_threads(2, 1024, UPDATE).status == 0
    before = (pytester.path / FILE).read_bytes()
    inner = with_threads(1, 1024)
    assert (inner.status, inner.has_section("cudamem summary")) == (0, False)
    assert with_threads(1, 1024, UPDATE).status == 0
    assert (pytester.path / FILE).read_bytes() == before  # the same again: no entry of its own

    inner = with_threads(1, 3072)
    assert (inner.status, inner.outcomes) == (1, {"test_a": "failed"})
    assert inner.section("test_a")[0].startswith("cudamem: requested 3.0 MiB above start is 2.0 MiB (+200.0%) above")
    assert inner.section("test_a")[-1] == (
        "recorded with 2 threads, this run has 1 thread: if that is the reason, "
        "record it with --cudamem-update=baselines"
    )
    assert with_threads(1, 1024, "--cudamem-baseline=require").status == 0

    assert "1 baseline: 1 new" in with_threads(1, 3072, UPDATE, "-v").run.notes
    for threads, kib in ((1, 3072), (2, 1024)):
        assert with_threads(threads, kib).status == 0
    assert with_threads(2, 3072).status == 1  # which has its own
    inner = with_threads(4, 9999)
    assert inner.status == 0
    assert inner.summary[1:2] == ["NOT CHECKED: 1 baseline: recorded with 1 thread, this run has 4 threads (record"]
    assert with_threads(4, 1024, "--cudamem-baseline=require").status == 1


def test_a_broken_file_is_an_error_and_stays(run_inner, pytester):
    run_inner(SMALL, UPDATE)
    path = pytester.path / FILE
    path.write_text(path.read_text().replace('"test_b"', "<<<"), encoding="utf-8")
    before = path.read_bytes()
    inner = run_inner({})
    assert (inner.last, inner.status) == ("2 passed", 1)
    assert inner.run.notes == (f"baselines not compared: {FILE}:4: is no JSON: Expecting value (column 10)",)
    inner = run_inner({}, UPDATE)
    assert inner.status == 1
    assert f"not written: {FILE}:4: is no JSON: Expecting value (column 10)" in inner.run.notes
    assert path.read_bytes() == before


def test_only_what_passes_is_recorded(run_inner, pytester):
    file = """
        import pytest, torch
        pytestmark = pytest.mark.memory_baseline

        def test_passes(): torch.empty(256)

        def test_fails():
            torch.empty(256)
            assert 1 == 2

        def test_skips():
            pytest.skip()

        @pytest.mark.xfail
        def test_xfails():
            torch.empty(256)
            assert 1 == 2

        @pytest.mark.memory_budget(peak=0)
        def test_over(): torch.empty(256)

        @pytest.fixture
        def bad():
            raise ValueError

        def test_error(bad): pass
    """
    run_inner(file, UPDATE)
    assert [*entries(pytester)] == ["test_over", "test_passes"]  # a budget that is over is no reason to forget it


def test_warmup(run_inner, pytester):
    file = """
        import pytest, torch
        cold = {}

        @pytest.mark.memory_baseline(warmup=1, metrics=("requested", "allocations"))
        def test_warm():
            if not cold:
                cold["cache"] = torch.empty(1024 * 256)
            torch.empty(256)
    """
    run_inner(file, UPDATE)
    assert entries(pytester) == {
        "test_warm": {"requested": KIB, "allocations": 1, "top": [["test_it.py::test_warm", KIB]]}
    }


def test_wrong_markers_stop_the_run_together(run_inner):
    file = """
        import pytest

        @pytest.mark.memory_baseline("5%")
        def test_a(): pass

        @pytest.mark.memory_baseline(tolerance="x", metrics=("speed",))
        def test_b(): pass

        @pytest.mark.memory_baseline(limit=5)
        def test_c(): pass

        @pytest.mark.memory_baseline(warmup=1)
        async def test_d(): pass
    """
    inner = run_inner(file)
    assert inner.status == 4
    assert inner.err.strip().splitlines() == [
        "ERROR: cudamem: test_it.py::test_a: memory_baseline takes keyword arguments only, such as tolerance='5%'",
        (
            "cudamem: test_it.py::test_b: memory_baseline tolerance 'x' has the part 'x': write a share such as 5%, a "
            "size such as 10MiB, or both with | between them"
        ),
        (
            "cudamem: test_it.py::test_b: memory_baseline metrics 'speed' is not known: write some of requested, peak, "
            "reserved, retained, allocations, segments, retries"
        ),
        "cudamem: test_it.py::test_c: memory_baseline has no argument limit: it takes metrics, tolerance, warmup",
        ("cudamem: test_it.py::test_d: memory_baseline warmup is not possible: an async test is run by its own plugin"),
    ]


def test_the_nearest_marker_counts(run_inner, pytester):
    file = """
        import pytest, torch
        pytestmark = pytest.mark.memory_baseline(metrics="peak")

        @pytest.mark.memory_baseline(metrics="allocations")
        class TestIt:
            @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.memory_baseline(metrics="retries"))])
            @pytest.mark.memory_baseline(metrics="requested")
            def test_a(self, x): pass

            def test_b(self): pass

        def test_c(): pass
    """
    run_inner(file, UPDATE)
    assert {test: sorted(entry) for test, entry in entries(pytester).items()} == {
        "TestIt::test_a[1]": ["requested", "top"],
        "TestIt::test_a[2]": ["retries", "top"],
        "TestIt::test_b": ["allocations", "top"],
        "test_c": ["peak", "top"],
    }


def test_an_error_in_the_evidence_hides_no_verdict(run_inner, monkeypatch):
    run_inner(SMALL, UPDATE)

    def fails(*arguments):
        raise LookupError("no luck")

    monkeypatch.setattr("cudamem_testing.run.baseline_check.moment_of", fails)
    inner = run_inner({"test_it.py": SMALL.replace("256 * 1024", "512 * 1024")})
    assert inner.last == "2 failed"
    assert inner.section("test_a") == [
        (
            "cudamem: requested 2.0 MiB above start is 1.0 MiB (+100.0%) above its baseline of 1.0 MiB, 64.0 KiB "
            "allowed (cpu)"
        ),
        "no evidence: LookupError: no luck",
    ]


def test_without_events_the_numbers_are_compared_all_the_same(run_inner, pytester):
    run_inner(SMALL, UPDATE, "--cudamem-stacks=off")
    assert entries(pytester) == {name: {"requested": 1024 * KIB, "top": []} for name in ("test_a", "test_b")}
    inner = run_inner({"test_it.py": SMALL.replace("256 * 1024", "512 * 1024")}, "--cudamem-stacks=off")
    assert inner.section("test_a")[1:] == [
        "live at the peak: unknown, no events were recorded (--cudamem-stacks=off, or the test has its own history)"
    ]


def test_what_ci_measured_is_accepted(run_inner, pytester, monkeypatch):
    """As if the run itself had recorded it; without the places if they were not searched for."""
    arguments = ("--cudamem", "--cudamem-json=report.json", "-k", "peak or unmarked")
    run(run_inner, monkeypatch, 0, *arguments, files=TEST)
    assert main(["accept", "report.json", "--baselines"]) == 0
    assert entries(pytester) == {"test_peak": PEAK, "test_unmarked": {"requested": 1024 * KIB, "top": []}}
    run(run_inner, monkeypatch, 5, *arguments)  # within the tolerance: nothing is rewritten
    assert main(["accept", "report.json", "--baselines"]) == 0
    assert entries(pytester)["test_peak"] == PEAK
    assert run(run_inner, monkeypatch, 500, *arguments).last == "2 failed, 1 passed, 4 deselected"
    assert main(["accept", "report.json", "--baselines"]) == 0
    found = entries(pytester)
    assert (found["test_peak"]["requested"], found["test_unmarked"]["requested"]) == (2548 * KIB, 1524 * KIB)
    assert found["test_unmarked"]["top"] == [["test_it.py::helper", 1524 * KIB]]
    assert run(run_inner, monkeypatch, 500, *arguments).last == "3 passed, 4 deselected"


@pytest.mark.parametrize(
    ("allocations", "kept"),
    [((0, 3), [1]), ((3, 0), [0]), ((0, 0), [0]), ((2, 3), [0, 1])],
)
def test_of_several_devices_those_that_a_test_uses_are_recorded(tmp_path, monkeypatch, allocations, kept):
    monkeypatch.setattr("cudamem_testing.run.baselines.identity", lambda device: "here")
    item = SimpleNamespace(nodeid="test_it.py::test_a", stash={keys.COMPARISON: Comparison()}, config=NoGroups())
    running = SimpleNamespace(item=item, nodeid=item.nodeid, measured=[], owner=Owner("test_a"), whole=None, notes=[])
    running.comparison = item.stash[keys.COMPARISON]
    settings = SimpleNamespace(baseline="compare", enforce=True, on=False, update=frozenset(), reports=False)
    windows = [
        Window("call", Device("cuda", place), requested_start=0, requested_peak=number, allocations=number)
        for place, number in enumerate(allocations)
    ]
    assert Baselines(settings, tmp_path, None, Tracker(), sent=True).call(running, windows) == []
    assert [place for place, one in enumerate(running.measured) if one.metrics] == kept
    assert [one.values["allocations"].low for one in running.measured] == [*allocations]


class NoGroups:
    """A config without pytest-xdist."""

    def getoption(self, name, default):
        return default


def test_without_cudamem_only_the_marker_counts(run_inner, pytester):
    """A fixture of ours has the test measured, not recorded, compared or repeated."""
    file = """
        import pytest, torch
        runs = []

        @pytest.mark.memory_baseline
        def test_marked(): pass

        def test_fixture(cuda_memory):
            runs.append(torch.empty(1024 * 256))
            assert len(runs) == 1
    """
    inner = run_inner(file, UPDATE, "--cudamem-repeat=3", "--cudamem-baseline=require")
    assert (inner.last, inner.test("test_fixture").measured[0].metrics) == ("2 passed", ())
    assert [*entries(pytester)] == ["test_marked"]
