"""Baselines count no workspace of a library: neither for nor against the test that first has it."""

from __future__ import annotations

import textwrap

import pytest

from cudamem_testing.model.baselines import Measured
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.evidence import NoEvidence, Why
from cudamem_testing.model.references import Reach
from cudamem_testing.model.stacks import Locator
from cudamem_testing.model.windows import Window
from cudamem_testing.objects.search import HolderResult
from cudamem_testing.recorders.cpu import CpuRecorder
from cudamem_testing.records.baselines import BASELINES
from cudamem_testing.run.baseline_check import BaselineCheck
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.replay import replay
from suites.plugin.inner import KIB, MIB
from suites.plugin.recorded import FILE, UPDATE, entries, run
from suites.snapshots.allocator import Allocator

pytestmark = pytest.mark.usefixtures("one_thread")


class Library:
    """A card whose library keeps workspaces of 32 MiB, and the record of a test on it."""

    device = Device("cuda", 0)
    locator = Locator("")

    def __init__(self, allocator, room=None):
        self.recorders = [self]
        allocator.trace = allocator.trace[-room:] if room else allocator.trace if room is None else []
        self.replayed = replay(read(allocator.snapshot(), max_entries=room), "requested")

    def recorder(self, device):
        assert device == self.device
        return self

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
    comparing = BaselineCheck(lambda nodeid: None, lambda device: None, None, library, library)
    found, look = comparing._look(window, Measured(library.device, "here", numbers, metrics=("requested",)))
    assert found.metrics == (("requested",) if "requested" in found.values else ())
    told = look if isinstance(look, str | NoEvidence) else sum(line.bytes for line in look.lines)
    assert comparing._notes == ([f"baseline on cuda:0: {UNKNOWN}"] if not found.metrics else [])
    return {name: spread.low for name, spread in found.values.items()}, told


def test_a_workspace_that_a_library_keeps_is_not_compared():
    allocator = Allocator()
    first = allocator.malloc(8 * MIB)
    allocator.malloc(32 * MIB)  # the library's: it stays
    allocator.free(first)
    second = allocator.malloc(16 * MIB)
    allocator.free(second)
    assert looked_at(allocator, 48 * MIB, 3) == (
        {"requested": 16 * MIB, "peak": 17 * MIB, "allocations": 2, "retries": 0},
        16 * MIB,
    )


def test_a_freed_block_of_a_workspaces_size_is_the_tests():
    allocator = Allocator()
    allocator.malloc(8 * MIB)
    allocator.free(allocator.malloc(32 * MIB))
    assert looked_at(allocator, 40 * MIB, 2) == (
        {"requested": 40 * MIB, "peak": 41 * MIB, "allocations": 2, "retries": 0},
        40 * MIB,
    )


UNKNOWN = "unknown, a library may have allocated a workspace without a recorded event"


def counted(allocator, allocations, blocks):
    return Counters(requested=allocator.requested, allocations=allocations, blocks=blocks)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("room", [12, 0])
def test_a_new_workspace_and_missing_events_hide_the_peak(room, early):
    """It may have been taken before the peak or after it, so the numbers are neither with it nor without it."""
    allocator = Allocator()
    allocator.malloc(MIB)
    opened = counted(allocator, 1, 1)
    for step in range(6):
        if step == (0 if early else 5):
            allocator.malloc(32 * MIB)
        allocator.free(allocator.malloc(8 * MIB))
    ends = {"opened": opened, "closed": counted(allocator, 8, 2)}
    assert looked_at(allocator, 40 * MIB, 7, room, **ends) == (
        {"retries": 0},
        NoEvidence("live at the peak", Why.WORKSPACES),
    )


@pytest.mark.parametrize(
    ("room", "told"), [(13, 8 * MIB), (0, "nothing of cuda:0")], ids=["events dropped", "no events"]
)
def test_an_older_workspace_and_missing_events_change_nothing(room, told):
    allocator = Allocator()
    allocator.malloc(32 * MIB)
    opened = counted(allocator, 1, 1)
    for _ in range(6):
        allocator.free(allocator.malloc(8 * MIB))
    allocator.malloc(2 * MIB)
    ends = {"opened": opened, "closed": counted(allocator, 8, 2)}
    numbers = {"requested": 8 * MIB, "peak": 9 * MIB, "allocations": 7, "retries": 0}
    assert looked_at(allocator, 8 * MIB, 7, room, **ends) == (numbers, told)


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
    recorded = BASELINES.read(pytester.path / FILE)
    assert {key.test: entry.values["requested"].low for key, entry in recorded.items()} == {
        "test_product": 3 * MIB,
        "test_again": 3 * MIB,
    }
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
        torch.empty(max(1, int(os.environ['MORE'])) * 256), torch.empty(2 * 1024 * 256)
"""


def test_the_test_that_first_has_a_workspace_is_not_blamed(run_inner, pytester, monkeypatch):
    """On a CPU, which has none: a size is taken for one, without a holder."""

    def held_by_nothing(addresses, **options):
        return {address: HolderResult(Reach.NOT_HELD, None) for address in addresses}

    monkeypatch.setattr(CpuRecorder, "workspace_sizes", lambda self: frozenset({3 * MIB}))
    monkeypatch.setattr("cudamem_testing.run.baseline_check.find_holders", held_by_nothing)
    run(run_inner, monkeypatch, 0, UPDATE, files=LIBRARY)
    recorded = entries(pytester)
    assert (recorded["test_product"]["requested"], recorded["test_product"]["allocations"]) == (2 * MIB + KIB, 3)
    inner = run(run_inner, monkeypatch, 1)
    assert (inner.last, inner.test("test_product").findings) == ("1 passed", ())
    assert inner.window("test_product").requested_growth == 5 * MIB + KIB
    inner = run(run_inner, monkeypatch, 100)
    assert inner.section("test_product")[1:] == [
        "grew: +99.0 KiB by test_it.py:11 in test_product (empty), 2.0 MiB -> 2.1 MiB",
        "   | torch.empty(max(1, int(os.environ['MORE'])) * 256), torch.empty(2 * 1024 * 256)",
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

    def held_by_nothing(addresses, **options):
        return {address: HolderResult(Reach.NOT_HELD, None) for address in addresses}

    monkeypatch.setattr(CpuRecorder, "workspace_sizes", lambda self: frozenset({3 * MIB}))
    monkeypatch.setattr("cudamem_testing.run.baseline_check.find_holders", held_by_nothing)
    monkeypatch.setattr("cudamem_testing.objects.places.find_holders", held_by_nothing)
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
