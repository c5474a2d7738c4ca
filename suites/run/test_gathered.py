"""What a run notes about itself when it ends."""

from __future__ import annotations

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.windows import Window
from cudamem_testing.run.gathered import unused
from cudamem_testing.wording.runs import nothing_allocated

CARDS, CPU, HOST = (Device("cuda", 1), Device("cuda", 0)), Device("cpu"), Device("host")


def window(device: Device, allocations: int | None = 0, start: int = 0) -> Window:
    return Window("test", device, start, start, start, allocations=allocations)


@pytest.mark.parametrize(
    ("more", "devices"),
    [
        ((), ["cuda:0", "cuda:1"]),
        ((window(HOST, 3),), ["cuda:0", "cuda:1"]),
        ((window(CARDS[0], 1),), []),
        ((window(CARDS[1], start=512),), []),
        ((window(CARDS[1], None),), []),
        ((window(CPU),), []),
    ],
    ids=["unused", "pinned memory", "used", "in use before", "unknown", "the CPU is measured"],
)
def test_cards_that_no_test_used(more: tuple[Window, ...], devices: list[str]) -> None:
    assert unused([*map(window, CARDS), *more]) == devices
    assert unused([]) == []


def test_the_note_says_how_to_measure_what_was_used() -> None:
    assert nothing_allocated(["cuda:0", "cuda:1"]) == (
        "no test allocated memory on cuda:0 or cuda:1; --cudamem-device=cpu measures tensors on the CPU"
    )
