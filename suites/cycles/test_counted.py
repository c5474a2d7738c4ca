"""Blocks that were counted, as cycles of the kind that was looked at."""

from __future__ import annotations

from cudamem_testing.cycles.counted import with_counted
from cudamem_testing.cycles.results import UNREAD, Cycle, KeptTensor, merged
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.unfinalized import Count

A, B = (Stack((Frame("a.py", line, "f", "project"),)) for line in (1, 2))


def tensor(size: int, stack: Stack, address: int) -> KeptTensor:
    return KeptTensor("x", "float32[1]", size, "cpu", address, stack)


def facts(cycle: Cycle) -> tuple[str, int, int, int]:
    return cycle.signature, cycle.count, cycle.bytes, len(cycle.tensors)


def test_blocks_count_for_the_cycle_shown_for_them() -> None:
    one = Cycle(("A",), (tensor(10, A, 1), tensor(4, A, 2), tensor(4, A, 3)), "one")
    other = Cycle(("B",), (tensor(10, A, 1),), "other")
    counts = [Count(5, 10, 3, 4, 1), Count(5, 4, 6, 4, 3), Count(6, 10, 2, 6, 1)]
    first, second, third = with_counted([(4, [one]), (6, [other])], counts, {})
    assert first == [one]
    assert [*map(facts, second)] == [("other", 1, 10, 1), ("other", 2, 20, 2)]
    assert [*map(facts, third)] == [("one", 3, 54, 9)]


def test_cycles_that_were_looked_at_together_share_a_kind() -> None:
    found = [(1, [Cycle(("A",), (tensor(10, A, 1), tensor(10, A, 2), tensor(10, B, 3)), "one", count=2)])]
    (_, counted) = with_counted(found, [Count(2, 10, 5, 1, 2)], {})
    assert [*map(facts, counted)] == [("one", 5, 50, 5)]
    (_, counted) = with_counted(found, [Count(2, 10, 5, 1, 3)], {})
    assert [*map(facts, counted)] == [("one", 10, 50, 5)]


def test_blocks_of_no_cycle_are_of_one_that_was_not_read() -> None:
    found = [(1, [Cycle(("A",), (tensor(10, A, 1),), "one")])]
    first, second = with_counted(found, [Count(1, 10, 1, 0, 0), Count(1, 11, 4, 1, 9), Count(2, 10, 1, 2, 1)], {})
    assert [*map(facts, first)] == [("one", 1, 10, 1), (UNREAD, 4, 54, 5)]
    assert [*map(facts, second)] == [(UNREAD, 1, 10, 1)]


def test_how_many_there_were_is_estimated_where_kinds_of_blocks_do_not_agree() -> None:
    found = [(1, [Cycle(("A",), (tensor(10, A, 1), tensor(4, B, 2), tensor(4, B, 3)), "one")])]
    (_, (alike,)) = with_counted(found, [Count(2, 10, 3, 1, 1), Count(2, 4, 6, 1, 2)], {})
    assert (alike.count, alike.estimated) == (3, False)
    (_, (grown,)) = with_counted(found, [Count(2, 10, 3, 1, 1), Count(2, 4, 8, 1, 2)], {})
    assert (grown.count, grown.estimated) == (4, True)
    (_, (odd,)) = with_counted(found, [Count(2, 4, 5, 1, 2)], {})
    assert (odd.count, odd.estimated) == (3, True)
    assert grown.text.splitlines()[-1] == "found about 4 times"
    (both,) = merged([alike, grown])
    assert (both.count, both.estimated) == (7, True)
