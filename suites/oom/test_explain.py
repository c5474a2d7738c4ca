"""Explanations of failed allocations: figures, the hint that fits, exact texts."""

import pytest

from cudamem_testing.model.stacks import Locator
from cudamem_testing.oom.explain import explain
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.wording.memory import oom_hint, oom_lines
from suites.snapshots.allocator import FRAMES, MIB, Allocator

PLACES = Locator("/home/me/project")


def said(error):
    return "\n".join(oom_lines(error))


def owners_of(error):
    return [(one.owner, one.bytes) for one in error.left]


def failed(allocator, requested, free=0):
    """The recording at the moment at which the observer is called."""
    snapshot = allocator.snapshot()
    oom = {"action": "oom", "device_free": free, "size": requested, "stream": 0, "time_us": allocator.clock + 1}
    snapshot["device_traces"][0].append({**oom, "frames": FRAMES[6]})
    return read(snapshot, locator=PLACES)


def test_fragmentation():
    allocator = Allocator()
    blocks = [allocator.malloc(5 * MIB, frames=FRAMES[n % 2]) for n in range(12)]  # four to a segment
    for block in blocks[::2]:
        allocator.free(block)
    error = explain(failed(allocator, 20 * MIB), allowed=64 * MIB)
    assert error.blame == "fragmentation"
    assert said(error) == (
        "out of memory on cuda:0: 20.0 MiB requested by layer7.py:7 in forward\n"
        "   allowed                  64.0 MiB\n"
        "   allocated                30.0 MiB\n"
        "   reserved, not allocated  30.0 MiB  largest range 5.0 MiB\n"
        "   free on the device            0 B\n"
        "   other processes           unknown\n"
        "hint: fragmentation: 30.0 MiB are reserved and unused, but no range is larger than 5.0 MiB. Try "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or free the small blocks between large ones.\n"
        "live when it ran out: 30.0 MiB in 6 blocks\n"
        "   30.0 MiB   6 blocks  layer2.py:2 in forward     torch/nn/functional.py linear\n"
        "note: memory of other processes is unknown: pip install nvidia-ml-py"
    )


def test_the_test_needs_more_than_the_device_has():
    allocator = Allocator()
    allocator.malloc(50 * MIB, frames=FRAMES[3])
    error = explain(failed(allocator, 20 * MIB), allowed=64 * MIB, others=0)
    assert (error.blame, error.shortage, error.others) == ("need", 20 * MIB, 0)
    assert oom_hint(error) == (
        "the test needs more memory than the device has: 50.0 MiB are live, 20.0 MiB more were requested. "
        "The largest line is layer4.py:4 in forward."
    )


def test_an_earlier_test_left_it():
    allocator = Allocator()
    left = [allocator.malloc(40 * MIB), allocator.malloc(2 * MIB), allocator.malloc(12 * MIB)]
    allocator.restart()
    allocator.malloc(11 * MIB)
    error = explain(
        failed(allocator, 30 * MIB),
        allowed=80 * MIB,
        others=0,
        owners={left[0].address: "test_a.py::test_big", left[1].address: "test_a.py::test_small"},
    )
    assert error.blame == "earlier tests"
    assert owners_of(error) == [("test_a.py::test_big", 40 * MIB), ("test_a.py::test_small", 2 * MIB)]
    assert error.before == 12 * MIB
    text = said(error)
    assert "   left by test_a.py::test_big    40.0 MiB  allocated by layer7.py:7 in forward\n" in text
    assert "   live before the test           12.0 MiB\n" in text
    assert "hint: earlier tests left enough to make room: test_a.py::test_big left 40.0 MiB, allocated by " in text
    assert "   40.0 MiB   1 block  (left by test_a.py::test_big)\n" in text


def test_memory_older_than_a_relative_limit_is_not_blamed():
    allocator = Allocator()
    left = allocator.malloc(40 * MIB)
    allocator.restart()
    allocator.malloc(11 * MIB, frames=FRAMES[3])
    owners = {left.address: "test_a.py::test_big"}
    error = explain(failed(allocator, 30 * MIB), allowed=56 * MIB, base=40 * MIB, others=0, owners=owners)
    assert error.blame == "need"
    assert oom_hint(error) == (
        "a single request of 30.0 MiB exceeds the 16.0 MiB limit. The largest line is layer4.py:4 in forward."
    )
    assert said(error).splitlines()[1].split("  ")[-1] == "16.0 MiB above the 40.0 MiB at the start of the limit"


def test_private_pools_hold_it():
    allocator = Allocator()
    allocator.free(allocator.malloc(40 * MIB, pool=(0, 1)))
    allocator.malloc(3 * MIB, pool=(0, 2))
    error = explain(failed(allocator, 30 * MIB, free=5 * MIB), others=MIB)
    assert (error.blame, error.free) == ("private pools", 5 * MIB)
    assert "   private pools            60.0 MiB  2 pools, 57.0 MiB of it unused\n" in said(error)
    assert oom_hint(error) == (
        "CUDA graphs or memory pools hold 57.0 MiB that they do not use and nothing else can. "
        "Drop graphs that are no longer replayed, or let them share a pool."
    )


def test_another_process_holds_it():
    allocator = Allocator()
    allocator.malloc(3 * MIB)
    error = explain(failed(allocator, 30 * MIB), others=70 * MIB)
    assert error.blame == "other processes"
    assert oom_hint(error) == "other processes hold 70.0 MiB on cuda:0. End them, or use another card."


def test_what_is_a_few_bytes_short_needs_only_those():
    allocator = Allocator()
    for _ in range(3):
        allocator.malloc(4 * MIB)
    error = explain(failed(allocator, 30 * MIB, free=23 * MIB), others=0)
    assert (error.shortage, error.blame) == (7 * MIB, "fragmentation")  # 8 MiB of the segment are unused


def test_a_limit_on_the_cpu():
    rows = [(0x10, 3 * MIB, 1, 0, 1, 1, 1, 0), (0, 6 * MIB, 0, 0, 2, 1, 1, 2), (0x20, 9, 2, 0, 3, 1, 1, 0)]
    recording = read_cpu(
        [(0x10, 3 * MIB, 1, 1, 1, 1), (0x20, 9, 2, 3, 1, 1)],
        rows,
        lambda number: PLACES.stack([("/home/me/project/a.py", number, "f")]),
    )
    error = explain(recording, allowed=8 * MIB)
    assert said(error) == (
        "out of memory on cpu: 6.0 MiB requested by a.py:2 in f\n"
        "   allowed    8.0 MiB\n"
        "   allocated  3.0 MiB\n"
        "hint: the test needs more memory than the device has: 3.0 MiB are live, 6.0 MiB more were requested. "
        "The largest line is a.py:1 in f.\n"
        "live when it ran out: 3.0 MiB in 1 block\n"
        "   3.0 MiB   1 block  a.py:1 in f"
    )


def test_without_a_recorded_failure_the_request_must_be_given():
    recording = read(Allocator().snapshot())
    with pytest.raises(ValueError, match="the recording holds no failed allocation: pass how much was requested"):
        explain(recording)
    error = explain(recording, 5)
    assert (error.shortage, error.blame, error.where) == (None, "need", None)
    assert said(error).startswith("out of memory on cuda:0: 5 B requested\n   allowed                  unknown\n")


def test_the_text_is_bounded():
    allocator = Allocator()
    blocks = [allocator.malloc(MIB + n, frames=FRAMES[n % 7], pool=(0, n % 9)) for n in range(400)]
    owners = {block.address: f"test_{n % 50}" for n, block in enumerate(blocks)}
    allocator.restart()
    for n in range(60):
        frame = {"filename": f"/home/me/project/f{n}.py", "line": n, "name": "g"}
        allocator.malloc(2 * MIB, frames=[frame])
    assert len(said(explain(failed(allocator, MIB), owners=owners)).splitlines()) <= 30


def test_blocks_with_dropped_events_belong_to_the_running_test():
    """The owner tells on the CPU; without it the row says that it is not known."""
    blocks = [(64, 10 * MIB, 1, 1, 1, 1), (128, 20 * MIB, 2, 2, 2, 1)]
    refused = [(0, 5 * MIB, 0, 9_000, 2, 2, 1, 2)]
    owners = {1: "test_a.py::test_old", 2: "test_a.py::test_now"}
    recording = read_cpu(
        blocks, refused, lambda n: PLACES.stack([("/home/me/project/a.py", n, "f")]), owners=owners, truncated=True
    )
    error = explain(recording, allowed=30 * MIB, running="test_a.py::test_now")
    assert (owners_of(error), error.before) == ([("test_a.py::test_old", 10 * MIB)], 0)
    assert "20.0 MiB   1 block  a.py:2 in f" in said(error)
    other = explain(recording, allowed=30 * MIB)
    assert owners_of(other) == [("test_a.py::test_now", 20 * MIB), ("test_a.py::test_old", 10 * MIB)]


@pytest.mark.parametrize("kept", [1, 4])
def test_on_a_card_older_blocks_may_be_the_test_s_own(kept):
    allocator = Allocator()
    allocator.malloc(12 * MIB)
    allocator.restart()
    allocator.malloc(11 * MIB)
    snapshot = allocator.snapshot()
    oom = {"action": "oom", "device_free": 0, "size": MIB, "stream": 0, "time_us": allocator.clock + 1}
    trace = [*snapshot["device_traces"][0], {**oom, "frames": FRAMES[6]}]
    snapshot["device_traces"][0] = trace[-kept:]
    error = explain(read(snapshot, locator=PLACES, max_entries=kept), others=0)
    (row,) = [line for line in said(error).splitlines() if line.startswith("   live before the test")]
    sizes = {1: "24.0 MiB  or allocated by it: its first events were dropped", 4: "12.0 MiB"}
    assert row == f"   live before the test     {sizes[kept]}"
