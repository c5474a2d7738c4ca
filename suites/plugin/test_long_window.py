"""Evidence of windows with more events than are kept: what was allocated in them is not called older."""

from __future__ import annotations

import re

import pytest

from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.windows import Window
from cudamem_testing.snapshots.explanations import at_peak
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.replay import replay
from suites.snapshots.allocator import MIB, Allocator

LIMITED = """
    import pytest, torch
    KEPT = []

    @pytest.fixture
    def before():
        return torch.empty(2**18)

    @pytest.mark.memory_budget(peak="1KiB")
    def test_freed(before):
        kept = [torch.empty(2**8) for _ in range(300)]

    @pytest.mark.memory_budget(retained=0)
    def test_kept(before):
        KEPT.extend(torch.empty(2**8) for _ in range(300))

    @pytest.mark.memory_baseline
    def test_compared():
        kept = [torch.empty(2**8) for _ in range(300)]
"""


@pytest.fixture
def events(monkeypatch):
    """How many events are kept: those of the window, or a part of them."""
    return lambda number: monkeypatch.setattr("cudamem_testing.recorders.cpu.EVENTS", number)


def own(inner):
    """The evidence of the test that freed its blocks, without what other tests of this process keep meanwhile."""
    assert inner.window("test_freed").peak_growth == 300 * 2**10
    head, *rows = inner.section("test_freed")[2:]
    assert head.startswith("live at the peak: ")
    return [row for row in rows if "(live before the test)" not in row]


@pytest.mark.parametrize("kept", [2**12, 400, 310])
def test_on_the_cpu_blocks_are_numbered(run_inner, events, kept):
    events(kept)
    inner = run_inner(LIMITED, "--cudamem", "--cudamem-leaks=off", "--cudamem-update=baselines", "-q")
    note = ["note: older events were dropped from the ring: a higher moment among them would not be seen"]
    assert own(inner) == [
        "   300.0 KiB   300 blocks  test_it.py:10 in test_freed",
        "                           | kept = [torch.empty(2**8) for _ in range(300)]",
        "     1.0 MiB     1 block   (left by this test, before the window)",
        *(note if kept < 600 else []),
    ]
    assert inner.section("ERROR at teardown of test_kept")[2:4] == [
        "still live: 300.0 KiB in 300 blocks",
        "   300.0 KiB   300 blocks  test_it.py:14 in test_kept",
    ]
    (measured,) = inner.test("test_compared").measured
    assert [(place.name, place.bytes) for place in measured.top or ()] == [("test_it.py::test_compared", 300 * 2**10)]


def test_a_peak_that_was_dropped_is_not_made_up(run_inner, events):
    events(50)
    inner = run_inner(LIMITED, "--cudamem", "--cudamem-leaks=off", "-q", "-k", "freed")
    assert own(inner) == [
        "    50.0 KiB   50 blocks  test_it.py:10 in test_freed",
        "                          | kept = [torch.empty(2**8) for _ in range(300)]",
        "     1.0 MiB    1 block   (left by this test, before the window)",
        "   250.0 KiB              (counted by the allocator beyond its blocks' sizes)",
        "note: older events were dropped from the ring: a higher moment among them would not be seen",
        "note: the counter held 250.0 KiB more than the blocks",
    ]


def test_on_a_card_it_is_not_known():
    """A block whose allocation was dropped has no number there: it may be the test's, or older."""
    allocator = Allocator()
    allocator.malloc(2 * MIB)
    allocator.restart()
    for _ in range(3):
        allocator.malloc(2 * MIB)
    counters = [Counters(allocated=2 * MIB * number, allocations=number, blocks=number) for number in (1, 4)]
    window = Window("call", Device("cuda", 0), 2 * MIB, 8 * MIB, 8 * MIB, opened=counters[0], closed=counters[1])
    snapshot = allocator.snapshot()
    assert rows(snapshot, window, len(allocator.trace) + 1) == [
        ("6.0 MiB", "3 blocks  project/layer.py in forward"),
        ("2.0 MiB", "1 block   (live before the test)"),
    ]
    snapshot["device_traces"] = [allocator.trace[-1:]]
    assert rows(snapshot, window, 1) == [
        ("2.0 MiB", "1 block   project/layer.py in forward"),
        ("6.0 MiB", "3 blocks  (left by this test, or live before it: its first events were dropped)"),
    ]


def rows(snapshot, window, entries):
    """Size, number and place of the rows of the section."""
    table = at_peak(replay(read(snapshot, max_entries=entries)), window, 0, "test_a", lambda frame: "")
    text = table.text()
    found = re.findall(r"^ +([\d.]+ MiB) +(\d+ blocks? +[^\n]+?)(?: {3,}[^\n]*)?$", text, re.M)
    return [(size, re.sub(r"layer\d+.py:\d+", "layer.py", what)) for size, what in found]
