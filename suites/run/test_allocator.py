"""Settings of the allocator that a test changed and left."""

from __future__ import annotations

from typing import Any

import pytest

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.cards import SHARE
from cudamem_testing.run.allocator import Allocator, read, restored


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch is given."""
    found: list[Any] = []
    monkeypatch.setattr(torch_api, "set_memory_fraction", lambda index, value: found.append((index, value)))
    monkeypatch.setattr(torch_api, "set_allocator_settings", found.append)
    return found


def test_a_fraction_is_set_again(given: list[Any]) -> None:
    before, after = Allocator("", ((0, 1.0), (1, 0.5))), Allocator("", ((0, 0.25), (1, 0.5)))
    assert restored(before, after, after) == [
        "the test left set_per_process_memory_fraction(0.25) on cuda:0: set to 1 again"
    ]
    assert given == [(0, 1.0)]


def test_what_the_teardown_undid_is_left_alone(given: list[Any]) -> None:
    before, after = Allocator("", ((0, 1.0),)), Allocator("expandable_segments:True", ((0, 0.25),))
    assert restored(before, after, before) == []
    assert restored(before, before, after) == []  # a wider fixture's teardown
    assert given == []


def test_settings_are_set_again(given: list[Any]) -> None:
    after = Allocator("expandable_segments:True")
    assert restored(Allocator(""), after, after) == [
        "the test changed the allocator's settings to 'expandable_segments:True': the defaults are set again"
    ]
    before = Allocator("roundup_power2_divisions:[256:1,>:8]")
    assert restored(before, after, after) == [
        (
            "the test changed the allocator's settings to 'expandable_segments:True': "
            "set to 'roundup_power2_divisions:[256:1,>:8]' again"
        )
    ]
    assert given == ["expandable_segments:False", "expandable_segments:False,roundup_power2_divisions:[256:1,>:8]"]


def test_settings_that_cannot_be_unset_are_named(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    after = Allocator("max_split_size_mb:64")
    assert restored(Allocator(""), after, after) == [
        (
            "the test changed the allocator's settings to 'max_split_size_mb:64': max_split_size_mb cannot be unset "
            "while torch runs, and hold for the tests that follow"
        )
    ]

    def refuse(settings: str) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(torch_api, "set_allocator_settings", refuse)
    (line,) = restored(Allocator("max_split_size_mb:32"), after, after)
    assert line == (
        "the test changed the allocator's settings to 'max_split_size_mb:64'; they could not be restored: "
        "RuntimeError: no"
    )


def test_reading_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_api, "cuda_initialized", lambda: False)  # tests on a card may have started it
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.5")
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    found = read([Device("cuda", 0), Device("cpu")])
    assert found.fractions == ((0, 0.5),)
    assert read([Device("cpu")]).fractions == ()
    monkeypatch.setenv(SHARE, "0.25")  # of a worker: it is set when CUDA starts, which is no change of the test
    assert read([Device("cuda", 0)]).fractions == ((0, 0.25),)
