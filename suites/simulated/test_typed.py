"""Operators of a simulated card that have kernels with typed arguments."""

from __future__ import annotations

from typing import Any

import pytest

from suites.simulated.test_simulated import run


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """All of them, found in one process."""
    return run("typed")


@pytest.mark.subprocess
@pytest.mark.parametrize(
    "what",
    ["different", "other gradients", "different in place", "other errors", "other shapes"],
)
def test_outcomes_are_those_of_the_cpu(what: str, facts: dict[str, Any]) -> None:
    assert facts[what] == []


@pytest.mark.subprocess
def test_memory_is_what_a_card_takes(facts: dict[str, Any]) -> None:
    """Bytes of the result, at the peak, and how many allocations there were."""
    assert facts["counted"] == {
        "add": [4096, 4096, 1],
        "add in place": [0, 0, 0],
        "mm": [2**20, 2**20, 1],
        "mm of a part": [6144, 530432, 2],  # a copy of the part, before the product
        "sum": [512, 3 * 512, 3],
        "mse_loss": [4096, 8192, 2],
        "convolution": [131072, 332800, 2],
        "convolution again": [131072, 332800, 2],
        "convolution of columns": [115200, 366592, 3],  # a copy of the input in the order of the weight
    }


@pytest.mark.subprocess
def test_subclasses_modes_and_transforms_see_one_call(facts: dict[str, Any]) -> None:
    seen = dict(facts["around"])
    assert seen.pop("subclass") == "Named"
    assert seen.pop("mode") == ["aten.t.default", "aten.addmm.default", "aten.relu.default", "aten.sum.default"]
    assert seen.pop("profiler") == ["aten::exp"]
    message = "a simulated card has no kernel for aten::exp: run this on a real card (the CPU: "
    assert seen.pop("no kernel") == message + "\"exp_vml_cpu\" not implemented for 'ComplexHalf')"
    mixed = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    assert seen.pop("host") == mixed
    assert seen == dict.fromkeys(("vmap", "jvp", "conjugated", "hook", "boxed"), True)
