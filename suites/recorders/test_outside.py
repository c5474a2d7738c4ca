"""What a process takes of a card beside torch's allocator: what is known, and what is said where it is not."""

from __future__ import annotations

import pytest
import torch

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.model.outside import OutsideUse
from cudamem_testing.recorders import cards, outside
from cudamem_testing.wording import outside as words

GIB, MIB = 2**30, 2**20
CARD = Device("cuda", 0)
SHARED = "3.0 GiB are in use, maybe by other processes too, 2.0 GiB by the allocator"
BESIDE = "of cuda:0 are outside torch's allocator"


@pytest.mark.parametrize(
    ("reading", "size", "text"),
    [
        (
            OutsideUse(CARD, 2 * GIB, process=2 * GIB + 514 * MIB),
            514 * MIB,
            f"514.0 MiB {BESIDE}: the process uses 2.5 GiB, the allocator 2.0 GiB of it",
        ),
        (
            OutsideUse(CARD, 2 * GIB, in_use=3 * GIB, plans=1),
            GIB,
            f"at most 1.0 GiB {BESIDE}: {SHARED}; cuFFT keeps 1 plan",
        ),
        (
            OutsideUse(CARD, 2 * GIB, plans=0),
            None,
            "memory outside torch's allocator is unknown on cuda:0: neither NVML nor CUDA reports it",
        ),
    ],
)
def test_a_reading(reading: OutsideUse, size: int | None, text: str) -> None:
    assert (reading.bytes, words.outside(reading)) == (size, text)


@pytest.mark.parametrize(
    ("process", "in_use", "found"),
    [
        (700, 900, OutsideUse(CARD, 100, 700, None, 4)),  # the driver is not asked for what all take
        (None, 900, OutsideUse(CARD, 100, None, 900, 4)),
        (None, None, OutsideUse(CARD, 100, None, None, 4)),
    ],
)
def test_where_it_is_read_from(
    monkeypatch: pytest.MonkeyPatch, process: int | None, in_use: int | None, found: OutsideUse
) -> None:
    monkeypatch.setattr(cards, "this_process", lambda device: process)
    monkeypatch.setattr(torch_api, "memory_in_use", lambda index: in_use)
    monkeypatch.setattr(torch_api, "transform_plans", lambda index: 4)
    assert outside.read(CARD, 100) == found


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said without a card")
def test_without_a_card_torch_has_no_statistics() -> None:
    assert (torch_api.memory_in_use(0), torch_api.transform_plans(0)) == (None, None)


def test_what_torch_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (30 + index, 100))
    assert torch_api.memory_in_use(5) == 65
    monkeypatch.setattr(torch_api.cuda, "capturing", lambda: True)
    assert torch_api.memory_in_use(5) is None
