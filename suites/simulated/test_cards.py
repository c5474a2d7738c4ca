"""Which cards can be simulated, and the allocator's settings."""

from __future__ import annotations

import pytest

from cudamem_testing.model.allocator_settings import AllocatorSettings
from cudamem_testing.model.simulated_cards import CARDS, Cards

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "title", "memory", "count"),
    [
        ("", "simulated h100", CARDS["h100"].memory, 1),
        ("h200", "simulated h200", 150_109_880_320, 1),
        ("24GiB", "simulated 24GiB", 24 * GIB, 1),
        ("2x24GiB", "simulated 24GiB x 2", 24 * GIB, 2),
        ("8xa100", "simulated a100 x 8", CARDS["a100"].memory, 8),
    ],
)
def test_a_card_is_named_by_model_or_size(text: str, title: str, memory: int, count: int) -> None:
    cards = Cards.parse(text)
    assert (str(cards), cards.model.memory, cards.count) == (title, memory, count)


@pytest.mark.parametrize("text", ["h900", "0x24GiB", "17xh100", "x", "1KiB", "24GiBx2"])
def test_other_cards_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^no card '{text}' can be simulated: write a size \(24GiB\), a model"):
        Cards.parse(text)


def test_settings_are_those_of_the_environment() -> None:
    text = "expandable_segments:True, max_split_size_mb:24,garbage_collection_threshold:0.6"
    settings = AllocatorSettings.read({"PYTORCH_CUDA_ALLOC_CONF": text})
    assert (settings.expandable, settings.max_split, settings.collect_above) == (True, 24 * 2**20, 0.6)
    assert AllocatorSettings.read({}) == AllocatorSettings()


def test_divisions_of_powers_of_two() -> None:
    def read(text: str) -> tuple[int, ...]:
        return AllocatorSettings.read({"PYTORCH_ALLOC_CONF": f"roundup_power2_divisions:{text}"}).divisions

    assert read("4") == (4,) * 16
    assert read("[256:1,512:2,1024:4,>:8]") == (1,) * 9 + (2, 4) + (8,) * 5


def test_a_wrong_setting_is_told() -> None:
    with pytest.raises(ValueError, match="the allocator's settings cannot be read"):
        AllocatorSettings.read({"PYTORCH_ALLOC_CONF": "max_split_size_mb:many"})
