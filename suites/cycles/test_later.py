"""Blocks of cards are found after the collection: where they were allocated, and whether they count."""

from __future__ import annotations

from cudamem_testing.cycles.later import Place, own, own_counts, placed
from cudamem_testing.cycles.native import device_numbers
from cudamem_testing.cycles.results import Cycle, KeptTensor
from cudamem_testing.model.stacks import Frame, Locator, Stack
from cudamem_testing.unfinalized import Count

STACK = Stack((Frame("model.py", 7, "forward", "project"),))
CARD = int.from_bytes(device_numbers(["cuda:0"]), "little")


class Record:
    """In collection 1 of the card a block of the test and one of others were live; collection 2 was lost."""

    def at(self, collection, device):
        if device != "cuda:0":
            return None
        return {16: Place(STACK, True), 32: Place(STACK, False)} if collection == 1 else {}


def tensor(address, device="cuda:0"):
    return KeptTensor("", "", 512, device, address, Stack())


def test_only_the_blocks_of_the_test_count():
    cycles = [Cycle(("a",), (tensor(16), tensor(32), tensor(64, "cpu")), "a"), Cycle(("b",), (tensor(32),), "b")]
    found = placed(Record(), 1, cycles, Locator("/project"))
    assert [[one.stack for one in cycle.tensors] for cycle in found] == [[STACK, STACK, Stack()], [STACK]]
    assert found[0].origin.near == (("/project/model.py", 7),) * 2
    assert [[one.address for one in cycle.tensors] for cycle in own(Record(), 1, found)] == [[16, 64]]


def test_blocks_that_the_record_has_lost_do_not_count():
    cycles = [Cycle(("a",), (tensor(16),), "a")]
    assert own(Record(), 2, placed(Record(), 2, cycles, Locator("/project"))) == []


def test_counted_blocks_count_by_their_addresses():
    card, others, lost = (Count(number, 512, 3, 1, 16, 0, CARD) for number in (1, 1, 2))
    cpu = Count(1, 512, 5, 1, 16)
    addresses = [(0, 16), (0, 32), (0, 48), (1, 32), (2, 16)]
    assert [*own_counts(Record(), [card, others, lost, cpu], addresses)] == [card._replace(blocks=1), cpu]


def test_saved_blocks_count_with_what_was_shown():
    saved, of_others = (Count(2, 1024, 2, 1, address, 1, CARD) for address in (16, 32))
    assert [*own_counts(Record(), [saved, of_others], [])] == [saved]
