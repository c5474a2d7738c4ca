"""Ten programs: what was live at the peak adds up to the measured peak, to the byte, on each device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cudamem_testing.model.devices import Device
from cudamem_testing.model.live_tables import live_table
from cudamem_testing.model.stacks import Locator
from cudamem_testing.recorders.choose import Recorders
from cudamem_testing.snapshots.capture import recording_of
from cudamem_testing.snapshots.evidence import moment_of
from cudamem_testing.snapshots.replay import replay
from cudamem_testing.windows.tracker import Tracker

HERE = Path(__file__).parent
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def matrix_product(device: str) -> None:
    a = torch.ones(300, 500, device=device)
    (a @ a.T).sum()


def training_step(device: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(200, 301), torch.nn.GELU(), torch.nn.Linear(301, 77)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(33, 200, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def convolution(device: str) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 5)).to(device)
    net(torch.rand(2, 3, 40, 40, device=device)).sum().backward()


def checkpointed(device: str) -> None:
    layers = [torch.nn.Linear(256, 256).to(device) for _ in range(4)]
    x = torch.rand(64, 256, device=device, requires_grad=True)
    for layer in layers:
        x = checkpoint(lambda value, layer=layer: layer(value).relu(), x, use_reentrant=False)
    x.sum().backward()


def attention(device: str) -> None:
    block = torch.nn.MultiheadAttention(64, 4, batch_first=True).to(device)
    x = torch.rand(3, 50, 64, device=device)
    block(x, x, x)[0].sum().backward()


def growing_list(device: str) -> None:
    kept = [torch.empty(size, device=device) for size in range(1, 4000, 97)]
    del kept[::2]
    kept += [torch.empty(size, device=device) for size in range(5, 9000, 1013)]


def concatenation(device: str) -> None:
    parts = [torch.rand(17, 129, device=device) for _ in range(9)]
    torch.cat(parts).sort(dim=0)


def views_and_in_place(device: str) -> None:
    x = torch.zeros(1000, 70, device=device)
    for row in x.unbind():
        row.add_(1)
    x.view(-1)[::3].clone().mul_(2)


def double_backward(device: str) -> None:
    w = torch.rand(90, 90, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad((w**3).sum(), w, create_graph=True)
    grad.sum().backward()


def empty_and_odd(device: str) -> None:
    for size in (0, 1, 511, 512, 513, 2**20 - 1, 2**20 + 1, 3 * 2**20 + 5):
        torch.empty(size, dtype=torch.uint8, device=device)
    torch.empty(11 * 2**20 + 3, dtype=torch.uint8, device=device)


PROGRAMS: list[Callable[[str], None]] = [
    matrix_product,
    training_step,
    convolution,
    checkpointed,
    attention,
    growing_list,
    concatenation,
    views_and_in_place,
    double_backward,
    empty_and_odd,
]


@pytest.fixture(params=DEVICES)
def tracker(request: pytest.FixtureRequest) -> Iterator[Tracker]:
    gc.collect()  # nothing of other tests goes meanwhile
    recorders = Recorders(Device.parse(request.param), record=True)
    opened = [one for one in recorders.open() if not one.device.pseudo][:1]
    yield Tracker(opened)
    recorders.close()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_live_at_the_peak_adds_up(tracker: Tracker, program: Callable[[str], None]) -> None:
    (recorder,) = tracker.recorders
    if recorder.device.kind == "cuda":
        torch.zeros(1, device="cuda")
    torch.manual_seed(0)
    before = torch.ones(1234, device=recorder.device.kind)
    recorder.wake(limited=True)
    span = tracker.open("program")
    program(recorder.device.kind)
    (window,) = tracker.close(span)
    capture = recorder.capture()
    recorder.sleep()
    assert capture is not None
    recording = recording_of(capture, Locator(str(HERE)))
    start = moment_of(recording, window.opened, window.closed)
    peak = replay(recording).peak(start, measured=window.peak)
    assert peak.total == window.peak  # before any rounding is added
    assert peak.live.rounding == 0
    table = live_table(peak.live, start=window.start)
    assert sum(row.size for row in (*table.lines, *table.others)) == table.total == window.peak
    assert window.start is not None
    assert window.start >= before.nbytes
