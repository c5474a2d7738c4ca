"""Baselines in a run: recorded, compared, missing, of other environments."""

from __future__ import annotations

import json
import textwrap
from types import SimpleNamespace

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.model.baselines import Measured
from cudamem_testing.model.changes import Comparison, Spread
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.windows import Window
from cudamem_testing.objects import HolderResult, Reach
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.baselines import Baselines
from cudamem_testing.plugin.comparing import Comparing
from cudamem_testing.recorders.cpu import CpuRecorder
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.replay import replay
from cudamem_testing.windows.owners import Owner
from cudamem_testing.windows.tracker import Tracker
from suites.plugin.inner import KIB, MIB
from suites.plugin.recorded import FILE, HERE, SMALL, UPDATE, VERSION, entries
from suites.snapshots.allocator import Allocator

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


def run(run_inner, monkeypatch, more, *arguments, files=None):
    """A run in which each test takes so many KiB more."""
    monkeypatch.setenv("MORE", str(more))
    return run_inner({} if files is None else files, "--no-header", "-rA", *arguments)


PEAK = {"requested": 2048 * KIB, "top": [["test_it.py::helper", 1024 * KIB], ["test_it.py::test_peak", 1024 * KIB]]}
COUNTS = {"peak": 2 * KIB, "allocations": 10, "top": [["test_it.py::helper", 2 * KIB]]}
MARKED = {
    "test_peak": PEAK,
    "test_counts[a::b/c]": COUNTS,
    "test_counts[\\xfc]": COUNTS,
    "test_keeps": {"retained": 64 * KIB, "top": [["test_it.py::helper", 64 * KIB]]},
    "test_nothing": {"requested": 0, "top": []},
}


def test_marked_tests_are_recorded_and_compared(run_inner, pytester, monkeypatch):
    inner = run(run_inner, monkeypatch, 0, files=TEST)
    assert inner.last == "7 passed"
    assert "note: 5 tests without a baseline (--cudamem-update=baselines records it)" in inner.summary
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

    inner = run(run_inner, monkeypatch, 1500)
    assert inner.last == "1 failed, 6 passed, 1 error"
    assert inner.section("test_peak") == [
        (
            "cudamem: requested 3.5 MiB above start is 1.5 MiB (+73.2%) above its baseline of 2.0 MiB, 64.0 KiB "
            "allowed (cpu)"
        ),
        "live at the peak, places that grew:",
        "   +1.5 MiB  1.0 MiB -> 2.5 MiB  test_it.py:7 in helper",
    ]
    assert inner.section("ERROR at teardown of test_keeps") == [
        "cudamem: retained 1.5 MiB is 1.5 MiB (+2343.8%) above its baseline of 64.0 KiB, 0 B allowed (cpu)",
        "still live:",
        "   +1.5 MiB  new -> 1.5 MiB  test_it.py:7 in helper",
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
    assert inner.run.notes == ("1 test improved beyond the tolerance: --cudamem-update=baselines keeps it so",)
    (finding,) = inner.test("test_peak").findings
    assert (finding.verdict.value, finding.severity.value, finding.bytes) == ("improved", "note", 200 * KIB)

    inner = run(run_inner, monkeypatch, -200, UPDATE)
    assert "note: 5 baselines: 2 more, 1 less, 2 the same" in inner.summary
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


def test_a_metric_that_was_not_recorded_is_told_and_can_be_required(run_inner, pytester, monkeypatch):
    assert run(run_inner, monkeypatch, 0, UPDATE, files=TEST).status == 0
    metrics = 'metrics=("requested", "reserved", "allocations", "retained")'
    files = {
        "test_it.py": TEST.replace(
            "memory_baseline\n    def test_peak", f"memory_baseline({metrics})\n    def test_peak"
        )
    }
    told = "1 test without a baseline of retained, allocations (--cudamem-update=baselines records it)"
    inner = run(run_inner, monkeypatch, 0, files=files)
    assert (inner.status, inner.run.notes) == (0, (told,))
    inner = run(run_inner, monkeypatch, 0, "--cudamem-baseline=require")
    assert [finding.message for finding in inner.test("test_peak").failing] == [
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
    assert inner.run.notes == ("1 test compared in nothing: no reserved on cpu",)
    assert not (pytester.path / "__cudamem__").exists()
    assert run_inner({}, "--cudamem-baseline=require").last == "1 passed"


VARYING = """
    import os
    import pytest, torch

    @pytest.mark.memory_baseline(metrics=("requested", "retained"))
    def test_it():
        test_it.kept = torch.empty(int(os.environ["KEEPS"]) * 256)
        torch.empty((int(os.environ["MORE"]) - int(os.environ["KEEPS"])) * 256)
"""


def test_one_run_within_a_spread_does_not_replace_it(run_inner, pytester, monkeypatch):
    def recorded(more, keeps, *arguments):
        monkeypatch.setenv("KEEPS", str(keeps))
        assert run(run_inner, monkeypatch, more, UPDATE, *arguments, files={"test_it.py": VARYING}).status == 0
        entry = entries(pytester)["test_it"]
        return entry["requested"], entry["retained"]

    assert recorded(1024, 1) == (MIB, KIB)
    path = pytester.path / FILE
    text = path.read_text(encoding="utf-8").replace(f'"requested": {MIB}', f'"requested": [{MIB}, {2 * MIB}]')
    path.write_text(text, encoding="utf-8")
    spread = [MIB, 2 * MIB]
    for more in (1024, 1500, 1000, 2048, 2100):  # up to 64 KiB below and above
        assert recorded(more, 1) == (spread, KIB)
    assert path.read_text(encoding="utf-8") == text
    assert recorded(1500, 100) == (1500 * KIB, 100 * KIB)  # it keeps more
    path.write_text(text, encoding="utf-8")
    assert recorded(2060, 1, "--cudamem-repeat=2") == (2060 * KIB, KIB)
    path.write_text(text, encoding="utf-8")
    assert recorded(2200, 1) == (2200 * KIB, KIB)


def test_other_environments_are_kept_and_named_once(run_inner, pytester):
    run_inner(SMALL, UPDATE)
    path = pytester.path / FILE
    path.write_text(path.read_text().replace(f"torch {VERSION}", "torch 2.1"), encoding="utf-8")
    inner = run_inner({})
    assert inner.last == "2 passed"
    line = f"2 baselines not compared: torch 2.1 to {VERSION} (--cudamem-update=baselines"
    assert [one for one in inner.summary if one.startswith("note")] == [f"note: {line}"]
    old = path.read_text().splitlines()[1:3]
    assert run_inner({}, "--cudamem-baseline=require").last == "2 failed"
    run_inner({}, UPDATE)
    lines = path.read_text().splitlines()
    assert len(lines) == 6
    assert {*old} < {*lines}
    assert run_inner({}, "--cudamem-baseline=require").last == "2 passed"


def test_a_broken_file_is_an_error_and_stays(run_inner, pytester):
    run_inner(SMALL, UPDATE)
    path = pytester.path / FILE
    path.write_text(path.read_text().replace('"test_b"', "<<<"), encoding="utf-8")
    before = path.read_bytes()
    inner = run_inner({})
    assert (inner.last, inner.status) == ("2 passed", 1)
    assert inner.run.notes == (f"baselines not compared: {FILE}:3: is no JSON: Expecting value (column 10)",)
    inner = run_inner({}, UPDATE)
    assert inner.status == 1
    assert f"not written: {FILE}:3: is no JSON: Expecting value (column 10)" in inner.run.notes
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
            "cudamem: test_it.py::test_b: memory_baseline metrics 'speed' is not known: write of requested, peak, "
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


REPEATED = """
    import itertools
    import pytest, torch

    numbers = itertools.count(1)
    pytestmark = pytest.mark.memory_baseline

    @pytest.fixture
    def given():
        yield next(numbers)

    def test_varies(given):
        torch.empty((3 - given % 3) * 256 * 256)

    class TestState:
        def test_has_an_instance_of_its_own(self, given):
            assert not hasattr(self, "seen")
            self.seen = given

    def test_fails_in_its_second_run(given):
        assert given % 5

    def test_skips(given):
        pytest.skip("always")
"""


def test_repeats_learn_the_spread(run_inner, pytester):
    inner = run_inner(REPEATED, UPDATE, "--cudamem-repeat=4", "--cudamem-json=report.json")
    assert inner.last == "1 failed, 2 passed, 1 skipped"
    assert entries(pytester) == {
        "TestState::test_has_an_instance_of_its_own": {"requested": 0, "top": []},
        "test_varies": {"requested": [256 * KIB, 768 * KIB], "top": [["test_it.py::test_varies", 768 * KIB]]},
    }
    records = {test.nodeid.rpartition("::")[2]: test for test in inner.run.tests}
    assert len(inner.run.tests) == 4
    assert (records["test_varies"].attempt, records["test_varies"].notes) == (1, ("run 4 times",))
    assert records["test_fails_in_its_second_run"].measured == ()
    assert "E       assert (10 % 5)" in inner.out
    for _ in range(3):  # whichever number comes first
        assert run_inner({}, "-k", "varies").last == "1 passed, 3 deselected"


def test_a_repeated_test_is_compared_each_time(run_inner):
    run_inner(REPEATED, UPDATE, "-k", "varies")
    inner = run_inner({}, "--cudamem-repeat=4", "-k", "varies")
    assert inner.last == "1 failed, 3 deselected"  # 512 KiB were recorded; the runs take 256 (an improvement) and 768
    assert [record.attempt for record in inner.run.tests] == [1]
    assert inner.section("test_varies")[-1] == "   +256.0 KiB  512.0 KiB -> 768.0 KiB  test_it.py:12 in test_varies"


GARBAGE = """
    import gc
    import pytest
    import torch

    @pytest.fixture(autouse=True, scope="module")
    def collector():
        gc.collect()
        gc.disable()
        yield
        gc.enable()

    def test_leaves():
        ring = [torch.empty(256 * 1024)]
        ring.append(ring)

    @pytest.mark.memory_baseline(metrics=("requested", "peak", "retained", "allocations"))
    def test_collects():
        first = torch.empty(1024)
        gc.collect()
        kept = torch.empty(384 * 1024)
        del kept
"""


@pytest.mark.parametrize("on", [[], ["--cudamem", "--cudamem-leaks=off", "--cudamem-cycles=off"]], ids=["marker", "on"])
def test_what_earlier_tests_left_and_goes_meanwhile_does_not_count(run_inner, pytester, on):
    alone = {"requested": 1540 * KIB, "peak": 1540 * KIB, "retained": 0, "allocations": 2}
    run_inner(GARBAGE, UPDATE, "-k", "collects", *on)
    assert entries(pytester)["test_collects"] == {**alone, "top": [["test_it.py::test_collects", 1540 * KIB]]}
    inner = run_inner({}, *on)
    (measured,) = inner.test("test_collects").measured
    assert {metric: spread.low for metric, spread in measured.values.items()} == {**alone, "retries": 0}
    assert inner.test("test_collects").findings == ()
    assert inner.window("test_collects").retained == -1024 * KIB  # what the counters say stays as it is
    run_inner({}, UPDATE, *on)
    assert entries(pytester)["test_collects"] == {**alone, "top": [["test_it.py::test_collects", 1540 * KIB]]}


def test_what_goes_meanwhile_does_not_count_where_no_events_are_recorded(run_inner):
    off = [f"--cudamem-{what}=off" for what in ("leaks", "cycles", "stacks")]
    inner = run_inner(GARBAGE, "--cudamem", *off)
    (measured,) = inner.test("test_collects").measured
    assert {metric: spread.low for metric, spread in measured.values.items()} == {
        "requested": 1540 * KIB,
        "peak": 1540 * KIB,
        "retained": 0,
        "allocations": 2,
        "retries": 0,
    }


class Library:
    """A card whose library keeps workspaces of 32 MiB, and the record of a test on it."""

    device = Device("cuda", 0)

    def __init__(self, allocator, room=None):
        self.recorders = [self]
        allocator.trace = allocator.trace[-room:] if room else allocator.trace if room is None else []
        self.replayed = replay(read(allocator.snapshot(), max_entries=room), "requested")

    def workspace_sizes(self):
        return frozenset({32 * MIB})

    def replay(self, device, counter="allocated"):
        assert (device, counter) == (self.device, "requested")
        return self.replayed

    def unknown(self, device):
        return f"nothing of {device}"


def looked_at(allocator, requested, allocations, room=None, **ends):
    library = Library(allocator, room)
    window = Window("call", library.device, requested_start=0, requested_peak=requested, **ends)
    values = {"requested": requested, "peak": requested + MIB, "allocations": allocations, "retries": 0}
    numbers = {name: Spread.of(number) for name, number in values.items()}
    comparing = Comparing(None, None, library, library)
    found, look = comparing._look(window, Measured(library.device, "here", numbers, metrics=("requested",)))
    assert found.metrics == (("requested",) if "requested" in found.values else ())
    told = look if isinstance(look, str) else [block.size for block in look.live]
    assert comparing._notes == ([f"baseline on cuda:0: {told.partition(': ')[2]}"] if not found.metrics else [])
    return {name: spread.low for name, spread in found.values.items()}, told


def test_a_workspace_that_a_library_keeps_counts_neither_for_nor_against():
    allocator = Allocator()
    first = allocator.malloc(8 * MIB)
    allocator.malloc(32 * MIB)  # the library's: it stays
    allocator.free(first)
    second = allocator.malloc(16 * MIB)
    allocator.free(second)
    assert looked_at(allocator, 48 * MIB, 3) == (
        {"requested": 16 * MIB, "peak": 17 * MIB, "allocations": 2, "retries": 0},
        [16 * MIB],
    )


def test_a_block_of_that_size_which_was_given_back_is_the_test_s_own():
    allocator = Allocator()
    allocator.malloc(8 * MIB)
    allocator.free(allocator.malloc(32 * MIB))
    assert looked_at(allocator, 40 * MIB, 2) == (
        {"requested": 40 * MIB, "peak": 41 * MIB, "allocations": 2, "retries": 0},
        [8 * MIB, 32 * MIB],
    )


UNKNOWN = "not known, a library may have taken a workspace in events that were not recorded"


def counted(allocator, allocations, blocks):
    return Counters(requested=allocator.requested, allocations=allocations, blocks=blocks)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("room", [12, 0])
def test_where_events_are_missing_a_workspace_that_is_new_makes_the_peak_unknown(room, early):
    """It may have been taken before the peak or after it, so the numbers are neither with it nor without it."""
    allocator = Allocator()
    allocator.malloc(MIB)
    opened = counted(allocator, 1, 1)
    for step in range(6):
        if step == (0 if early else 5):
            allocator.malloc(32 * MIB)
        allocator.free(allocator.malloc(8 * MIB))
    ends = {"opened": opened, "closed": counted(allocator, 8, 2)}
    assert looked_at(allocator, 40 * MIB, 7, room, **ends) == ({"retries": 0}, f"live at the peak: {UNKNOWN}")


@pytest.mark.parametrize(
    ("room", "told"), [(13, [8 * MIB]), (0, "nothing of cuda:0")], ids=["events dropped", "no events"]
)
def test_where_events_are_missing_an_older_workspace_changes_nothing(room, told):
    allocator = Allocator()
    allocator.malloc(32 * MIB)
    opened = counted(allocator, 1, 1)
    for _ in range(6):
        allocator.free(allocator.malloc(8 * MIB))
    allocator.malloc(2 * MIB)
    ends = {"opened": opened, "closed": counted(allocator, 8, 2)}
    numbers = {"requested": 8 * MIB, "peak": 9 * MIB, "allocations": 7, "retries": 0}
    assert looked_at(allocator, 8 * MIB, 7, room, **ends) == (numbers, told)


def test_what_goes_wrong_in_the_evidence_hides_no_verdict(run_inner, monkeypatch):
    run_inner(SMALL, UPDATE)

    def fails(*arguments):
        raise LookupError("no luck")

    monkeypatch.setattr("cudamem_testing.plugin.comparing.moment_of", fails)
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
        "live at the peak: not known, no events were recorded (--cudamem-stacks=off, or a history of the test's own)"
    ]


CARD = """
    import pytest, torch

    @pytest.mark.memory_baseline
    def test_product(): torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")

    @pytest.mark.memory_baseline
    def test_again(): torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")
"""


@pytest.mark.gpu
@pytest.mark.subprocess
def test_the_first_product_on_a_card_takes_what_the_second_does(pytester, monkeypatch):
    """Whichever test comes first has the workspace of cuBLAS in its window."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_it=textwrap.dedent(CARD))
    first = pytester.runpytest_subprocess("-p", "cudamem", UPDATE)
    assert first.ret == 0
    lines = (pytester.path / FILE).read_text().splitlines()[1:3]
    requested = {json.loads(line.removesuffix(","))["requested"] for line in lines}
    assert requested == {3 * MIB}
    other_order = pytester.runpytest_subprocess("-p", "cudamem", "test_it.py::test_again", "test_it.py::test_product")
    other_order.assert_outcomes(passed=2)


LIBRARY = """
    import os
    import pytest, torch

    kept = []

    @pytest.mark.memory_baseline(metrics=("requested", "allocations"))
    def test_product():
        torch.empty(1024 * 256)
        if os.environ["MORE"] != "0":
            kept.append(torch.empty(3 * 1024 * 256))
        torch.empty(max(1, int(os.environ["MORE"])) * 256), torch.empty(2 * 1024 * 256)
"""


def test_the_test_that_first_has_a_workspace_is_not_blamed(run_inner, pytester, monkeypatch):
    """On a CPU, which has none: a size is taken for one, and nobody for its holder."""

    def nobody(addresses, budget_seconds):
        return {address: HolderResult(Reach.NOT_HELD, None) for address in addresses}

    monkeypatch.setattr(CpuRecorder, "workspace_sizes", lambda self: frozenset({3 * MIB}))
    monkeypatch.setattr("cudamem_testing.objects.find_holders", nobody)
    run(run_inner, monkeypatch, 0, UPDATE, files=LIBRARY)
    recorded = entries(pytester)
    assert (recorded["test_product"]["requested"], recorded["test_product"]["allocations"]) == (2 * MIB + KIB, 3)
    inner = run(run_inner, monkeypatch, 1)
    assert (inner.last, inner.test("test_product").findings) == ("1 passed", ())
    assert inner.window("test_product").requested_growth == 5 * MIB + KIB
    inner = run(run_inner, monkeypatch, 100)
    assert inner.section("test_product")[1:] == [
        "live at the peak, places that grew:",
        "   +99.0 KiB  2.0 MiB -> 2.1 MiB  test_it.py:11 in test_product",
    ]
    run(run_inner, monkeypatch, 1, UPDATE)
    assert entries(pytester) == recorded
    for arguments in ((), (UPDATE,)):  # without events it is not compared, and not recorded
        inner = run(run_inner, monkeypatch, 1, "--cudamem-stacks=off", *arguments)
        (record,) = inner.run.tests
        assert (inner.last, record.findings, record.notes) == ("1 passed", (), (f"baseline on cpu: {UNKNOWN}",))
        assert entries(pytester) == recorded


@pytest.mark.parametrize("leaks", ["fail", "off"])
def test_a_workspace_is_in_no_report(run_inner, pytester, monkeypatch, leaks):
    """Also where nothing is compared, and whoever reads the report is to record it."""

    def nobody(addresses, budget_seconds):
        return {address: HolderResult(Reach.NOT_HELD, None) for address in addresses}

    monkeypatch.setattr(CpuRecorder, "workspace_sizes", lambda self: frozenset({3 * MIB}))
    monkeypatch.setattr("cudamem_testing.objects.find_holders", nobody)
    monkeypatch.setattr("cudamem_testing.plugin.settling.find_holders", nobody)
    file = f"""{LIBRARY}
    @pytest.fixture
    def more():
        yield
        torch.empty(9 * 1024 * 256)

    def test_unmarked(more):
        first = torch.empty(1024 * 256)
        kept.append(torch.empty(3 * 1024 * 256))
        del first
        torch.empty(2 * 1024 * 256)

    def test_other_size():
        kept.append(torch.empty(4 * 1024 * 256))
"""
    arguments = ("--cudamem", "--cudamem-baseline=off", f"--cudamem-leaks={leaks}", "--cudamem-json=report.json")
    inner = run(run_inner, monkeypatch, 1, *arguments, files=file)
    found = {test.nodeid: test.measured[0] for test in inner.run.tests}
    names = ("test_product", "test_unmarked", "test_other_size")
    assert [found[f"test_it.py::{name}"].values["requested"].low for name in names] == [2 * MIB + KIB, 2 * MIB, 4 * MIB]
    assert [found[f"test_it.py::{name}"].values["allocations"].low for name in names] == [3, 2, 1]
    assert [found[f"test_it.py::{name}"].top for name in names] == [None, None, None]
    assert inner.window("test_unmarked").requested_growth == 5 * MIB


def test_what_ci_measured_is_accepted(run_inner, pytester, monkeypatch):
    """As if the run itself had recorded it; where nobody looked, without the places."""
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
    monkeypatch.setattr("cudamem_testing.plugin.baselines.identity", lambda device: "here")
    item = SimpleNamespace(nodeid="test_it.py::test_a", stash={keys.COMPARISON: Comparison()}, config=NoGroups())
    running = SimpleNamespace(item=item, nodeid=item.nodeid, measured=[], owner=Owner("test_a"), whole=None, notes=[])
    settings = SimpleNamespace(baseline="compare", enforce=True, on=False, update=frozenset(), json=None)
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
        import torch
        runs = []

        def test_fixture(cuda_memory):
            runs.append(torch.empty(1024 * 256))
            assert len(runs) == 1
    """
    inner = run_inner(file, UPDATE, "--cudamem-repeat=3", "--cudamem-baseline=require")
    assert (inner.last, inner.test("test_fixture").measured[0].metrics) == ("1 passed", ())
    assert not (pytester.path / "__cudamem__").exists()
