"""Settings of the allocator that a test changed and left."""

from __future__ import annotations

from typing import Any

import pytest

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.cards import SHARE
from cudamem_testing.run.allocator import Allocator, Settings
from suites.recorders.allocator import Allocator as Model

CARDS = [Device("cuda", 0), Device("cuda", 1)]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What torch is given."""
    found: list[Any] = []
    monkeypatch.setattr(torch_api, "set_memory_fraction", lambda index, value: found.append((index, value)))
    monkeypatch.setattr(torch_api, "set_allocator_settings", found.append)
    return found


def restored(before: Settings, after: Settings, now: Settings, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said of a call from one reading to another, with a third after the teardown."""
    monkeypatch.setattr(Allocator, "read", lambda self: now)
    return Allocator(CARDS[: len(before[1])]).restore(before, after)


def test_a_fraction_is_set_again(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = ("", (1.0, 0.5)), ("", (0.25, 0.5))
    assert restored(before, after, after, monkeypatch) == [
        "the test left set_per_process_memory_fraction(0.25) on cuda:0: set to 1 again"
    ]
    assert given == [(0, 1.0)]


def test_what_the_teardown_undid_is_left_alone(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = ("", (1.0,)), ("expandable_segments:True", (0.25,))
    assert restored(before, after, before, monkeypatch) == []
    assert restored(before, before, after, monkeypatch) == []  # a wider fixture's teardown
    assert given == []


def test_settings_are_set_again(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    after = ("expandable_segments:True", ())
    assert restored(("", ()), after, after, monkeypatch) == [
        "the test changed the allocator's settings to 'expandable_segments:True': the defaults are set again"
    ]
    before = ("roundup_power2_divisions:[256:1,>:8]", ())
    assert restored(before, after, after, monkeypatch) == [
        (
            "the test changed the allocator's settings to 'expandable_segments:True': "
            "set to 'roundup_power2_divisions:[256:1,>:8]' again"
        )
    ]
    assert given == ["expandable_segments:False", "expandable_segments:False,roundup_power2_divisions:[256:1,>:8]"]


def test_settings_that_cannot_be_unset_are_named(given: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    after = ("max_split_size_mb:64", ())
    assert restored(("", ()), after, after, monkeypatch) == [
        (
            "the test changed the allocator's settings to 'max_split_size_mb:64': max_split_size_mb cannot be unset "
            "while torch runs, and hold for the tests that follow"
        )
    ]

    def refuse(settings: str) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(torch_api, "set_allocator_settings", refuse)
    (line,) = restored(("max_split_size_mb:32", ()), after, after, monkeypatch)
    assert line == (
        "the test changed the allocator's settings to 'max_split_size_mb:64'; they could not be restored: "
        "RuntimeError: no"
    )


def test_reading_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_api, "cuda_initialized", lambda: False)  # tests on a card may have started it
    monkeypatch.setattr(torch_api.cuda, "cuda_initialized", lambda: False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.5")
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    assert Allocator([*CARDS, Device("cpu")]).read()[1] == (0.5, 0.5)
    assert Allocator([Device("cpu")]).read()[1] == ()
    monkeypatch.setenv(SHARE, "0.25")  # of a worker: it is set when CUDA starts, which is no change of the test
    assert Allocator(CARDS[:1]).read()[1] == (0.25,)


def test_torchs_functions_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(cards=2)
    model.bindings._accelerator_getAllocatorSettings = lambda: "expandable_segments:True"
    model.initialized = False
    with model.in_place():
        monkeypatch.setattr(torch_api.cuda, "allocator_backend", lambda: "native")
        monkeypatch.setenv(SHARE, "0.5")
        allocator = Allocator(CARDS)
        assert allocator.read() == ("expandable_segments:True", (0.5, 0.5))
        model.initialized = True
        assert allocator.read() == ("expandable_segments:True", (1.0, 1.0))
        vars(model.bindings).clear()
        model.set_fraction(0.25, 1)
        assert allocator.read() == ("expandable_segments:True", (1.0, 0.25))


@pytest.mark.parametrize("why", ["another allocator", "no function", "no answer"])
def test_where_torch_does_not_say_it_the_whole_card_is_used(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    model = Model(cards=2)
    model.set_fraction(0.25, 1)
    with model.in_place():
        monkeypatch.setattr(torch_api.cuda, "allocator_backend", lambda: "native")
        if why == "another allocator":  # which may answer with uninitialised memory
            monkeypatch.setattr(torch_api.cuda, "allocator_backend", lambda: "cudaMallocAsync")
            model.bindings._cuda_getMemoryFraction = lambda index: 1e300
        elif why == "no function":
            del model.bindings._cuda_getMemoryFraction
        else:
            model.bindings._cuda_getMemoryFraction = refuse_to_say
        assert Allocator(CARDS).read() == (None, (1.0, 1.0))


def refuse_to_say(index: int) -> float:
    """As torch does for an allocator that keeps none."""
    raise RuntimeError("does not yet support getMemoryFraction")
