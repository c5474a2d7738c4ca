"""Live sets: totals, groups, differences."""

from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.blocks import Block, Group, LiveSet
from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import count
from cudamem_testing.model.stacks import Frame, Stack

CPU = Device("cpu")
HERE = Stack((Frame("test_a.py", 3, "test_a"),))
THERE = Stack((Frame("model.py", 9, "forward"),))


def test_a_set_totals_its_blocks_and_the_rounding():
    live = LiveSet(CPU, (Block(1000, 900, CPU), Block(24, 24, CPU)), rounding=-8)
    assert (live.total, len(live), [block.size for block in live]) == (1016, 2, [1000, 24])


def test_groups_are_largest_first_and_ties_by_appearance():
    live = LiveSet(CPU, (Block(1, 1, CPU, stack=HERE), Block(5, 5, CPU, stack=THERE), Block(4, 4, CPU, stack=HERE)))
    groups = live.group_by(lambda block: block.stack.line)
    assert [(group.key, group.size) for group in groups] == [
        ("test_a.py:3 in test_a", 5),
        ("model.py:9 in forward", 5),
    ]
    assert str(live) == (
        "10 B in 3 blocks on cpu\n  5 B  2 blocks  test_a.py:3 in test_a\n  5 B  1 block  model.py:9 in forward"
    )


def test_minus_compares_allocation_order_or_address_and_size():
    first, second = Block(8, 8, CPU, address=1, order=1), Block(8, 8, CPU, address=1, order=2)
    unknown, twin = Block(8, 8, CPU, address=5), Block(8, 8, CPU, address=5)
    before, after = LiveSet(CPU, (first, unknown)), LiveSet(CPU, (second, unknown, twin), 3, ("a note",), "why")
    left = after.minus(before)
    assert left == LiveSet(CPU, (second, twin), 0, ("a note",), "why")
    assert before.minus(after).blocks == (first,)


def test_a_block_and_a_group_say_what_they_are():
    assert str(Block(2048, 2000, CPU, stack=HERE)) == "2.0 KiB on cpu allocated test_a.py:3 in test_a"
    assert str(Group("x", (Block(1, 1, CPU),))) == "1 B  1 block  x"
    assert (count(0, "block"), count(1, "block"), count(2, "block")) == ("0 blocks", "1 block", "2 blocks")


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 100))),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 100))),
)
def test_minus_is_a_difference_of_multisets(ours, theirs):
    def live(parts):
        return LiveSet(CPU, tuple(Block(size, size, CPU, address=address) for address, size in parts))

    kept = [(block.address, block.size) for block in live(ours).minus(live(theirs))]
    for part in {*ours, *theirs}:
        assert kept.count(part) == max(0, ours.count(part) - theirs.count(part))
