"""Devices: every spelling means the same, and a kind covers its cards."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.devices import Device, parse_selection, select

CUDA0, CUDA1, CUDA, CPU, HOST = (Device("cuda", 0), Device("cuda", 1), Device("cuda"), Device("cpu"), Device("host"))
ANY = st.sampled_from([CUDA0, CUDA1, Device("cuda", 7), CUDA, CPU, HOST])


@pytest.mark.parametrize(
    ("spelling", "device"),
    [
        (0, CUDA0),
        (1, CUDA1),
        ("cuda", CUDA),
        ("cuda:0", CUDA0),
        ("cuda:1", CUDA1),
        ("cuda:12", Device("cuda", 12)),
        (torch.device("cuda"), CUDA),
        (torch.device("cuda", 1), CUDA1),
        (torch.device("cuda:0"), CUDA0),
        ("cpu", CPU),
        ("cpu:0", CPU),
        (torch.device("cpu"), CPU),
        (torch.device("cpu", 0), CPU),
        ("host", HOST),
        ("xpu", Device("xpu")),
        ("xpu:1", Device("xpu", 1)),
        (torch.device("xpu", 0), Device("xpu", 0)),
        (CUDA1, CUDA1),
    ],
)
def test_parse(spelling: object, device: Device) -> None:
    assert Device.parse(spelling) == device


@pytest.mark.parametrize(
    ("spelling", "shown"),
    [
        (True, "True"),
        (-1, "-1"),
        ("", "''"),
        ("gpu", "'gpu'"),
        ("CUDA:0", "'CUDA:0'"),
        ("cuda:", "'cuda:'"),
        ("cuda:-1", "'cuda:-1'"),
        ("cuda:\u0663", "'cuda:\u0663'"),
        ("cuda:0 ", "'cuda:0 '"),
        (torch.device("meta"), "device(type='meta')"),
        (None, "of type NoneType"),
        (1.0, "of type float"),
        (torch.ones(2, device="meta"), "of type Tensor"),
    ],
)
def test_parse_refuses(spelling: object, shown: str) -> None:
    with pytest.raises(ValueError) as caught:
        Device.parse(spelling)
    assert str(caught.value) == f"device {shown} is not known: write cpu, cuda, cuda:N or host"


@given(ANY)
def test_the_text_of_a_device_is_a_spelling_of_it(device: Device) -> None:
    assert Device.parse(str(device)) == device


@given(ANY, ANY)
def test_covers(one: Device, other: Device) -> None:
    assert one.covers(one)
    assert one.covers(other) == (one == other or (one == CUDA and other.kind == "cuda"))


def test_devices_sort_by_kind_and_index() -> None:
    assert sorted([CUDA1, HOST, CUDA, CUDA0, CPU]) == [CPU, CUDA, CUDA0, CUDA1, HOST]


@pytest.mark.parametrize(
    ("selection", "cards", "devices"),
    [
        ("auto", 0, (CPU,)),
        ("auto", 2, (CUDA0, CUDA1)),
        ("all", 0, (CPU,)),
        ("all", 2, (CUDA0, CUDA1, CPU)),
        ("cpu", 2, (CPU,)),
        ("cuda", 0, ()),
        ("cuda", 2, (CUDA0, CUDA1)),
        ("cuda:1", 2, (CUDA1,)),
        ("cuda:2", 2, ()),
    ],
)
def test_select(selection: str, cards: int, devices: tuple[Device, ...]) -> None:
    assert select(parse_selection(selection), "cuda", cards) == devices
    assert select(selection, "cuda", cards) == devices


@pytest.mark.parametrize("selection", ["", "gpu", "host", "cuda:x", "Auto", "cpu,cuda"])
def test_selection_refuses(selection: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_selection(selection)
    assert str(caught.value) == f"device {selection!r} is not known: write auto, all, cpu, cuda or cuda:N"
