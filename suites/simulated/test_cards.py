"""Which cards can be simulated, and the allocator's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudamem_testing.model.allocator_settings import AllocatorSettings
from cudamem_testing.model.changes import Spread, comparison
from cudamem_testing.model.simulated_cards import CARDS, Cards
from cudamem_testing.recorders.identity import is_real_card_of
from cudamem_testing.simulated import SimulatedCardError, unavailable
from cudamem_testing.simulated.unsupported import unsupported
from cudamem_testing.torch_api import cuda_build

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


@pytest.mark.parametrize("text", ["h900", "0x24GiB", "17xh100", "x", "24GiBx2"])
def test_other_cards_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^no card '{text}' can be simulated: write a size \(24GiB\), a model"):
        Cards.parse(text)


def test_a_card_without_room_beside_its_context_is_refused() -> None:
    why = "it needs more than 520.0 MiB, most of it for the context of a process"
    with pytest.raises(ValueError, match=rf"^no card '160MiB' can be simulated: {why}$"):
        Cards.parse("160MiB")
    with pytest.raises(ValueError, match=why):
        Cards.parse("2x520MiB")
    assert str(Cards.parse("521MiB")) == "simulated 521MiB"


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


def test_a_wrong_setting_is_an_error() -> None:
    with pytest.raises(ValueError, match="the allocator's settings cannot be read"):
        AllocatorSettings.read({"PYTORCH_ALLOC_CONF": "max_split_size_mb:many"})


def test_torch_whose_internals_differ_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_build.lacking() == []
    for header, word in cuda_build.NEEDED.items():
        (tmp_path / header).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / header).write_text(word)
    assert cuda_build.lacking(tmp_path) == []
    (tmp_path / "c10/core/CachingDeviceAllocator.h").write_text("struct DeviceBlocks")
    (tmp_path / "ATen/native/RNN.h").unlink()
    expected = ["no DeviceStats in c10/core/CachingDeviceAllocator.h", "no header ATen/native/RNN.h"]
    assert cuda_build.lacking(tmp_path) == expected
    monkeypatch.setattr(cuda_build, "has_cuda_build", lambda: False)
    monkeypatch.setattr(cuda_build, "lacking", lambda: expected)
    differ = f"the internals of this torch differ ({', '.join(expected)}): simulated cards need torch 2.7 or later"
    assert unavailable() == differ


def test_a_build_of_torch_with_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_build, "has_cuda_build", lambda: True)
    reason = unavailable()
    assert reason is not None
    assert reason.startswith("this torch was built with CUDA, whose kernels a simulated card cannot replace: ")
    assert reason.endswith("(pip install torch --index-url https://download.pytorch.org/whl/cpu)")
    monkeypatch.setattr(cuda_build, "has_cuda_build", lambda: False)
    assert unavailable() is None


@pytest.mark.parametrize(
    ("real", "simulated", "same"),
    [
        ("NVIDIA H100 80GB HBM3 (9.0), torch 2.11, native", "simulated h100 (9.0), torch 2.13, native", True),
        ("NVIDIA H200 (9.0), torch 2.13, native", "simulated h100 (9.0), torch 2.13, native", False),
        ("NVIDIA H100 80GB HBM3 (9.0), torch 2.13, native a:1", "simulated h100 (9.0), torch 2.13, native", False),
        ("NVIDIA H100 80GB HBM3 (9.0), torch 2.13, native", "simulated 24GiB (9.0), torch 2.13, native", False),
        ("NVIDIA H100 80GB HBM3 (9.0), torch 2.13, native", "NVIDIA H100 80GB HBM3 (9.0), torch 2.11, native", False),
        ("simulated h100 (9.0), torch 2.11, native", "simulated h100 (9.0), torch 2.13, native", False),
    ],
)
def test_a_real_card_of_the_model(real: str, simulated: str, same: bool) -> None:
    assert is_real_card_of(real, simulated) is same


def test_the_margin_of_a_simulated_card() -> None:
    asked = comparison(metrics=("requested", "reserved", "allocations"), tolerance="1%")
    allowed = asked.on_simulated_card()
    million = Spread.of(10**8)
    assert allowed.metrics == ("requested", "reserved")
    assert [asked.change("requested", million, million).slack, allowed.change("requested", million, million).slack] == [
        10**6,
        3 * 10**6,
    ]
    assert allowed.change("reserved", million, million).slack == 5 * 10**6
    wide = comparison(tolerance="8%").on_simulated_card()
    assert wide.change("requested", million, million).slack == 8 * 10**6


def test_errors_that_a_simulated_card_explains() -> None:
    compiler = RuntimeError("backend='inductor' raised")
    compiler.__cause__ = RuntimeError("Cannot find a working triton installation. Either")
    assert unsupported(compiler) == "a simulated card runs no Triton kernels: run this on a real card"
    own = NotImplementedError("a simulated card has no sparse tensors: run this on a real card\nmore")
    assert unsupported(own) == "a simulated card has no sparse tensors: run this on a real card"
    assert unsupported(SimulatedCardError("no graphs")) == "no graphs"
    home = OSError("CUDA_HOME environment variable is not set. Please set it to your CUDA install root.")
    assert unsupported(home) == "a simulated card runs no CUDA extensions: run this on a real card"
    assert unsupported(RuntimeError("a mistake")) is None
    assert unsupported(ValueError("a simulated card has no sparse tensors")) is None
