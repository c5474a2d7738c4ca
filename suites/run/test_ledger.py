"""The ledger of devices whose blocks carry no owner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.blocks import Block
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.base import Owned
from cudamem_testing.run.ledger import Ledger
from cudamem_testing.snapshots.record import Recording

CARD, OTHER = Device("cuda", 0), Device("cuda", 1)


def block(address: int | None, size: int = 512) -> Block:
    return Block(size, size, CARD, address=address)


@pytest.fixture
def empty() -> Recording:
    return Recording(CARD)


def holding(recording: Recording, *blocks: Block) -> Recording:
    return replace(recording, blocks=blocks)


def owners(recording: Recording) -> dict[int | None, str | None]:
    labels = recording.owners
    return {one.address: None if one.owner is None else labels[one.owner] for one in recording.blocks}  # type: ignore[index]


def test_owners_stand_at_their_blocks(empty: Recording) -> None:
    ledger = Ledger()
    ledger.enter(CARD, "test_a", [block(1), block(2)])
    ledger.enter(CARD, "fixture 'model'", [block(3)])
    named = ledger.named(holding(empty, block(1), block(2), block(3), block(4)))
    assert owners(named) == {1: "test_a", 2: "test_a", 3: "fixture 'model'", 4: None}


def test_nothing_entered_changes_nothing(empty: Recording) -> None:
    recording = holding(empty, block(1))
    assert Ledger().named(recording) is recording


def test_a_reused_address_has_no_owner(empty: Recording) -> None:
    ledger = Ledger()
    ledger.enter(CARD, "test_a", [block(1), block(2)])
    ledger.named(holding(empty, block(2)))
    assert owners(ledger.named(holding(empty, block(1), block(2)))) == {1: None, 2: "test_a"}


def test_a_block_of_another_size_at_an_address_is_another_block(empty: Recording) -> None:
    ledger = Ledger()
    ledger.enter(CARD, "test_a", [block(1, 512)])
    assert owners(ledger.named(holding(empty, block(1, 1024)))) == {1: None}


def test_totals() -> None:
    ledger = Ledger()
    ledger.enter(CARD, "test_a", [block(1, 512), block(2, 1024)])
    ledger.enter(CARD, "test_b", [block(3, 512), block(None, 4096)])
    ledger.enter(CARD, "test_a", [block(4, 512)])
    ledger.enter(OTHER, "test_a", [block(1, 2048)])
    assert ledger.totals(CARD) == {"test_a": Owned(2048, 3), "test_b": Owned(512, 1)}
    assert ledger.totals(OTHER) == {"test_a": Owned(2048, 1)}


def test_unknown_blocks(empty: Recording) -> None:
    ledger = Ledger()
    ledger.enter(CARD, "test_a", [block(1)])
    assert ledger.unknown(holding(empty, block(1), block(2), block(3))) == {2, 3}


@given(st.lists(st.tuples(st.sampled_from(["enter", "free", "look"]), st.integers(1, 6), st.sampled_from("ab"))))
def test_against_a_table_of_live_blocks(steps: list[tuple[str, int, str]]) -> None:
    ledger, empty = Ledger(), Recording(CARD)
    live: dict[int, str] = {}
    for step, address, label in steps:
        if step == "enter" and address not in live:
            live[address] = label
            ledger.enter(CARD, label, [block(address)])
        elif step == "free":
            live.pop(address, None)
            ledger.named(holding(empty, *map(block, live)))  # a recording is taken before the address is used again
        elif step == "look":
            assert owners(ledger.named(holding(empty, *map(block, live)))) == live
