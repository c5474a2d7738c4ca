"""Calls of the dispatcher in a recording: whose tensors they are, and that nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from cudamem_testing.trace.profile import MemoryProfile, memory_profile


def recorded() -> MemoryProfile:
    model = torch.nn.Linear(64, 64, bias=False)
    x = torch.ones(4, 64)
    with memory_profile(dispatched=True) as profile:
        with profile.region("forward"):
            loss = model(x).relu().sum()
        with profile.region("backward"):
            loss.backward()
    return profile


def test_rows_are_calls_of_the_dispatcher() -> None:
    recorded().assert_categories(
        """
        -- forward ----------------------------------------------------------------------------------------------
        aten::t                                  1 (PARAMETER)                                 -> 1 (PARAMETER)
        aten::mm                                 2 (INPUT), 1 (PARAMETER)                      -> 3 (ACTIVATION)
        aten::relu                               3 (ACTIVATION)                                -> 4 (ACTIVATION)
        aten::sum                                4 (ACTIVATION)                                -> 5 (ACTIVATION)

        -- backward ---------------------------------------------------------------------------------------------
        aten::ones_like                          5 (ACTIVATION)                                -> 6 (ACTIVATION)
        aten::expand                             6 (ACTIVATION)                                -> 6 (ACTIVATION)
        aten::threshold_backward                 6 (ACTIVATION), 4 (ACTIVATION)                -> 7 (AUTOGRAD_DETAIL)
        aten::t                                  7 (AUTOGRAD_DETAIL)                           -> 7 (AUTOGRAD_DETAIL)
        aten::mm                                 7 (AUTOGRAD_DETAIL), 2 (INPUT)                -> 8 (GRADIENT)
        aten::t                                  8 (GRADIENT)                                  -> 8 (GRADIENT)
        aten::t                                  8 (GRADIENT)                                  -> 8 (GRADIENT)
        """,
        ids="profiler",
        exclude="aten::detach",  # of which versions of torch do more or less
    )


def test_choices() -> None:
    text = (
        recorded()
        .categories()
        .text(ids="profiler", include=("aten::sum", "aten::mm"), exclude="aten::t*", min_bytes="2KiB", regions=False)
    )
    assert text.split("\n") == [
        "aten::mm                                 1 (PARAMETER)                                 ->",
        "aten::mm                                                                               -> 8 (GRADIENT)",
    ]


def test_other_texts_are_those_of_a_plain_recording() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin().sum()

    plain, noted = MemoryProfile()(step, x=torch.ones(8)), MemoryProfile(dispatched=True)(step, x=torch.ones(8))
    assert plain.trace.dispatched is None
    assert [call.name for call in noted.trace.dispatched or ()] == ["aten::mul.Tensor", "aten::sin", "aten::sum"]
    assert str(noted.data_flow()) == str(plain.data_flow())
    assert str(noted.categories()) == str(plain.categories())
    assert str(noted.timeline()) == str(plain.timeline())


def test_addresses_that_are_used_again() -> None:
    """Each product lies where the one before it lay; only the time tells them apart."""
    x = torch.ones(1024)
    with MemoryProfile(dispatched=True) as profile:
        for _ in range(50):
            (x * 2).sum()
    calls = profile.trace.dispatched or ()
    made = [call.outputs[0] for call in calls if call.name == "aten::mul.Tensor"]
    taken = [call.inputs[0] for call in calls if call.name == "aten::sum"]
    assert made == taken
    assert len({one.allocation for one in made if one is not None}) == 50
    assert len({one.pointer for one in made if one is not None}) < 50


def test_lists_keywords_and_tensors_without_memory() -> None:
    with MemoryProfile(dispatched=True) as profile:
        parts = torch.ones(4).split(2)
        torch.cat(parts, out=torch.empty(4))
        torch.empty(0).sin()
        torch.ones(3, device="meta").sin()
        torch.eye(2).to_sparse()
    rows = [(call.name, len(call.inputs), len(call.outputs)) for call in profile.trace.dispatched or ()]
    assert rows == [
        ("aten::ones", 0, 1),
        ("aten::split.Tensor", 1, 2),
        ("aten::empty.memory_format", 0, 1),
        ("aten::cat.out", 3, 1),
        ("aten::eye", 0, 1),
        ("aten::_to_sparse", 1, 0),
    ]


def test_nothing_is_kept_and_the_mode_ends() -> None:
    kept: list[StorageWeakRef] = []

    def fails() -> None:
        tensor = torch.ones(64)
        kept.append(StorageWeakRef(tensor.untyped_storage()))
        del tensor
        raise ZeroDivisionError

    profile = MemoryProfile(dispatched=True)
    with pytest.raises(ZeroDivisionError):
        profile(fails)
    assert kept[0].expired()
    assert _get_current_dispatch_mode_stack() == []
    assert [call.name for call in profile.trace.dispatched or ()] == ["aten::ones"]
    with torch.profiler.profile(), pytest.raises(RuntimeError, match="a torch profiler is recording already"):
        MemoryProfile(dispatched=True).__enter__()
    assert _get_current_dispatch_mode_stack() == []
    with pytest.raises(TypeError, match="unexpected keyword argument 'ids'"):
        memory_profile(ids="profiler")
