"""Settings of the allocator that a test changed and left."""

from __future__ import annotations

from typing import Any

import pytest

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.cards import SHARE
from cudamem_testing.run.allocator import Allocator, AllocatorReader, read, restored
from suites.recorders.allocator import Allocator as Model


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


CARDS = [Device("cuda", 0), Device("cuda", 1)]


def test_torchs_functions_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(cards=2)
    model.bindings._accelerator_getAllocatorSettings = lambda: "expandable_segments:True"
    model.initialized = False
    with model.in_place():
        monkeypatch.setattr(torch_api.cuda, "allocator_backend", lambda: "native")
        monkeypatch.setenv(SHARE, "0.5")
        reader = AllocatorReader([*CARDS, Device("cpu")])
        assert reader.read() == Allocator("expandable_segments:True", ((0, 0.5), (1, 0.5)))
        model.initialized = True
        assert reader.read() == Allocator("expandable_segments:True", ((0, 1.0), (1, 1.0)))
        vars(model.bindings).clear()
        model.set_fraction(0.25, 1)
        found = reader.read()
        assert found == Allocator("expandable_segments:True", ((0, 1.0), (1, 0.25)))
        assert type(found) is Allocator


@pytest.mark.parametrize("why", ["another allocator", "no function", "no answer"])
def test_where_torch_does_not_say_it_the_whole_card_is_used(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    model = Model(cards=2)
    model.set_fraction(0.25, 1)
    with model.in_place():
        monkeypatch.setattr(torch_api.cuda, "allocator_backend", lambda: "native")
        reader = AllocatorReader(CARDS)
        if why == "another allocator":  # which may answer with uninitialised memory
            monkeypatch.setattr(torch_api.cuda, "allocator_backend", lambda: "cudaMallocAsync")
            model.bindings._cuda_getMemoryFraction = lambda index: 1e300
        elif why == "no function":
            del model.bindings._cuda_getMemoryFraction
        else:
            reader = AllocatorReader([*CARDS[:1], Device("cuda", 7)])
            model.bindings._cuda_getMemoryFraction = lambda index: [model.get_fraction, refused][index > 1](index)
        assert {fraction for _, fraction in reader.read().fractions} == {1.0}
        assert reader.read().settings is None


def refused(index: int) -> float:
    """As torch does for an allocator that keeps none."""
    raise RuntimeError("does not yet support getMemoryFraction")
