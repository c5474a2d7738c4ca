"""Two moments compared."""

from cudamem_testing.model.stacks import Locator
from cudamem_testing.snapshots.diff import compare, difference
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.read_cpu import read_cpu
from cudamem_testing.snapshots.replay import DROPPED, replay
from suites.snapshots.allocator import FRAMES, KIB, Allocator

PLACES = Locator("/home/me/project")
ASSUMED = (
    "as unchanged, by address and size: the later history begins after the earlier snapshot, "
    "so blocks that were freed and allocated again between them are not seen"
)


def test_moments_of_a_recording_that_reuses_an_address():
    allocator = Allocator()
    gone = allocator.malloc(4 * KIB, frames=FRAMES[0])
    allocator.malloc(2 * KIB, frames=FRAMES[1])
    then = len(allocator.trace)
    allocator.free(gone)
    again = allocator.malloc(4 * KIB, frames=FRAMES[0])
    allocator.malloc(6 * KIB, frames=FRAMES[1])
    allocator.malloc(KIB, frames=FRAMES[2])
    assert again.address == gone.address
    replayed = replay(read(allocator.snapshot(), locator=PLACES))
    change = difference(replayed.live_at(then), replayed.live_at())
    assert [block.requested for block in change.new] == [4 * KIB, 6 * KIB, KIB]
    assert [block.requested for block in change.gone] == [4 * KIB]
    assert [str(one) for one in change.grown] == [
        "6.0 KiB more, 1 -> 2 blocks  layer2.py:2 in forward",
        "1.0 KiB more, 0 -> 1 block  layer3.py:3 in forward",
    ]
    assert str(change) == (
        "+7.0 KiB on cuda:0: 11.0 KiB in 3 blocks new, 4.0 KiB in 1 block gone\n"
        "grown\n"
        "   +6.0 KiB  2.0 KiB -> 8.0 KiB  1 -> 2 blocks  layer2.py:2 in forward\n"
        "   +1.0 KiB  0 B -> 1.0 KiB      0 -> 1 block   layer3.py:3 in forward\n"
        "new: 11.0 KiB in 3 blocks\n"
        "   6.0 KiB   1 block  layer2.py:2 in forward     torch/nn/functional.py linear\n"
        "   4.0 KiB   1 block  layer1.py:1 in forward     torch/nn/functional.py linear\n"
        "   1.0 KiB   1 block  layer3.py:3 in forward     torch/nn/functional.py linear\n"
        "gone: 4.0 KiB in 1 block\n"
        "   4.0 KiB   1 block  layer1.py:1 in forward     torch/nn/functional.py linear"
    )


def test_two_recordings_of_a_card_whose_history_was_restarted():
    allocator = Allocator()
    first = [allocator.malloc(size, frames=FRAMES[0]) for size in (KIB, 2 * KIB, 3 * KIB)]
    before = read(allocator.snapshot(), locator=PLACES)
    allocator.restart()
    allocator.free(first[0])
    same_place = allocator.malloc(KIB, frames=FRAMES[1])
    allocator.free(first[2])
    assert same_place.address == first[0].address
    change = compare(before, read(allocator.snapshot(), locator=PLACES))
    assert [(block.requested, block.stack.line) for block in change.new] == [(KIB, "layer2.py:2 in forward")]
    assert [block.requested for block in change.gone] == [KIB, 3 * KIB]
    assert change.growth == -3 * KIB
    assert str(change).splitlines()[0] == "-3.0 KiB on cuda:0: 1.0 KiB in 1 block new, 4.0 KiB in 2 blocks gone"
    assert change.notes == (f"1 block counts {ASSUMED}",)
    assert str(change).splitlines()[-1] == f"note: 1 block counts {ASSUMED}"


def test_two_recordings_of_one_growing_history():
    allocator = Allocator()
    allocator.malloc(KIB)
    before = read(allocator.snapshot())
    allocator.malloc(2 * KIB)
    change = compare(before, read(allocator.snapshot()))
    assert [block.requested for block in change.new] == [2 * KIB]
    assert not change.gone.blocks
    assert change.notes == ()


def test_notes_of_either_recording_are_kept():
    one, other = [(0x10, 8, 1, 0, 0, 0)], [(0x10, 8, 1, 0, 0, 0), (0x20, 8, 2, 0, 0, 0)]
    before, after = read_cpu(one, notes=["a", "both"]), read_cpu(other, truncated=True, notes=["both", "b"])
    assert compare(before, after).notes == ("earlier: a", "both", "later: b", f"later: {DROPPED}")
    assert str(compare(before, after)).splitlines()[-2:] == ["note: later: b", f"note: later: {DROPPED}"]
    without = read_cpu(one), read_cpu(other)
    assert compare(*without).notes == ()


def test_recordings_of_the_cpu_go_by_sequence():
    before = read_cpu([(0x10, 8, 1, 0, 0, 0)])
    after = read_cpu([(0x10, 8, 2, 0, 0, 0)])
    change = compare(before, after)
    assert ([block.order for block in change.new], [block.order for block in change.gone]) == ([2], [1])
    assert compare(before, before).growth == 0
    assert str(compare(before, before)) == "+0 B on cpu: 0 B in 0 blocks new, 0 B in 0 blocks gone"


def test_many_grown_lines_are_bounded():
    allocator = Allocator()
    then = len(allocator.trace)
    for number in range(7):
        allocator.malloc((number + 1) * KIB, frames=FRAMES[number])
    replayed = replay(read(allocator.snapshot(), locator=PLACES))
    text = difference(replayed.live_at(then), replayed.live_at()).text(most=5)
    assert "   ... 2 more lines: +3.0 KiB\nnew: 28.0 KiB in 7 blocks\n" in text
