"""What the numbers of a device depend on."""

from __future__ import annotations

import os
import platform

import pytest
import torch

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.recorders.identity import allocator_settings, difference, identity, recorded_with, without_threads

VERSION = ".".join(torch.__version__.split(".")[:2])


def test_the_cpu() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert identity(Device("cpu")) == f"{platform.machine()}, 1 thread, torch {VERSION}"
        torch.set_num_threads(2)
        assert identity(Device("cpu")) == f"{platform.machine()}, 2 threads, torch {VERSION}"
    finally:
        torch.set_num_threads(before)


def test_nothing_is_asked_of_a_card_that_was_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_api, "cuda_initialized", lambda: False)
    assert identity(Device("cuda", 0)) is None
    assert identity(Device("host")) is None


class Card:
    name, major, minor = "NVIDIA H100 80GB HBM3", 9, 0


def test_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_api, "cuda_initialized", lambda: True)
    monkeypatch.setattr(torch_api, "allocator_backend", lambda: "native")
    monkeypatch.setattr(torch_api, "version", lambda: "2.11.0+cu129")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Card)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert identity(Device("cuda", 0)) == "NVIDIA H100 80GB HBM3 (9.0), torch 2.11, native"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments: True")
    assert identity(Device("cuda", 0)) == "NVIDIA H100 80GB HBM3 (9.0), torch 2.11, native expandable_segments:True"


@pytest.mark.gpu
def test_a_real_card() -> None:
    torch.zeros(1, device="cuda")
    major, minor = torch.cuda.get_device_capability(0)
    assert identity(Device("cuda", 0)) == (
        f"{torch.cuda.get_device_name(0)} ({major}.{minor}), torch {VERSION}, "
        + " ".join((torch.cuda.get_allocator_backend(), *allocator_settings(os.environ)))
    )


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("x86_64, 1 thread, torch 2.11", "x86_64, 1 thread, torch 2.13", "torch 2.11 to 2.13"),
        ("x86_64, 1 thread, torch 2.11", "x86_64, 4 threads, torch 2.13", "1 thread to 4 threads, torch 2.11 to 2.13"),
        ("x86_64, 1 thread, torch 2.11", "aarch64, 1 thread, torch 2.11", "x86_64 to aarch64"),
        (
            "NVIDIA A100 (8.0), torch 2.11, native",
            "NVIDIA H100 (9.0), torch 2.11, native",
            "NVIDIA A100 (8.0) to H100 (9.0)",
        ),
        ("T4 (7.5), torch 2.11, native", "T4 (7.5), torch 2.11, native a:b,c:d", "native to native a:b,c:d"),
        ("one", "one, two", "one to one, two"),
        ("one, two", "one, two", ""),
        ("one", "one", ""),
    ],
)
def test_what_two_differ_in(before: str, after: str, text: str) -> None:
    assert difference(before, after) == text


def test_how_a_run_differs_from_what_was_recorded() -> None:
    here = "x86_64, 1 thread, torch 2.13"
    assert recorded_with("x86_64, 2 threads, torch 2.11", here) == (
        "recorded with 2 threads, torch 2.11, this run has 1 thread, torch 2.13"
    )
    assert recorded_with("one", here) == f"recorded with one, this run has {here}"
    assert without_threads(here) == without_threads("x86_64, 12 threads, torch 2.13") == "x86_64, torch 2.13"
    assert without_threads("NVIDIA H100 (9.0), torch 2.11, native") == "NVIDIA H100 (9.0), torch 2.11, native"
