"""Who holds the blocks of a test: what known places explain is not searched for again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cudamem_testing.model.blocks import Block
from cudamem_testing.model.devices import Device
from cudamem_testing.model.references import Reach
from cudamem_testing.objects.search import HolderResult
from cudamem_testing.run.holders import BlockHolders

CPU = Device("cpu")
BLOCKS = [Block(64, 64, CPU, address=number) for number in (1, 2)]


class Places:
    """Known places that explain some addresses, and a heap that answers for all."""

    def __init__(self, known: Iterable[int], reach: Reach = Reach.REACHABLE) -> None:
        self._known = {*known}
        self._reach = reach
        self.searched: list[list[int]] = []

    def find(self, addresses: Iterable[int], **beside: object) -> dict[int, HolderResult] | None:
        wanted = {*addresses}
        return {one: HolderResult(Reach.HARNESS, None) for one in wanted} if wanted <= self._known else None

    def search(self, addresses: Iterable[int], **budget: object) -> dict[int, HolderResult]:
        self.searched.append([*addresses])
        return {one: HolderResult(self._reach, None) for one in self.searched[-1]}


@pytest.mark.parametrize(
    ("known", "reach", "answers", "searched"),
    [
        ((1, 2), Reach.REACHABLE, (True, True), []),
        ((1,), Reach.REACHABLE, (False, True), [[1, 2]]),
        ((), Reach.UNREACHABLE, (False, False), [[1, 2]]),
        ((), Reach.UNKNOWN, (False, False), [[1, 2]]),
    ],
)
def test_the_heap_is_searched_for_what_is_not_known(
    known: tuple[int, ...], reach: Reach, answers: tuple[bool, bool], searched: list[list[int]]
) -> None:
    places = Places(known, reach)
    holders = BlockHolders(places)  # type: ignore[arg-type]
    asked = {CPU: BLOCKS}
    assert (holders.are_known(asked), holders.are_found(asked)) == answers
    assert places.searched == searched
    if all(answers):
        assert {one.reach for one in holders.of(CPU, BLOCKS).values()} == {Reach.HARNESS}
        assert places.searched == searched
