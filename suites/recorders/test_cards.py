"""Names of cards from NVML: in CUDA's order, or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.recorders import cards

H100, T4 = "NVIDIA H100 80GB HBM3", "Tesla T4"


class NVMLError(Exception):
    """What the bindings raise."""


def forget() -> None:
    cards.close()
    cards.all_names.cache_clear()


@pytest.fixture(autouse=True)
def _fresh_names() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch, _fresh_names: None) -> SimpleNamespace:
    """The bindings with the names in ``names``; ``calls`` counts what opens and closes the library."""
    module = SimpleNamespace(names=[H100, H100], calls=[], NVMLError=NVMLError)
    module.nvmlInit = lambda: module.calls.append("init")
    module.nvmlShutdown = lambda: module.calls.append("shutdown")
    module.nvmlDeviceGetCount = lambda: len(module.names)
    module.nvmlDeviceGetHandleByIndex = lambda place: place
    module.nvmlDeviceGetName = lambda handle: module.names[handle]
    monkeypatch.setitem(sys.modules, "pynvml", module)  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return module


def test_all_cards(nvml: SimpleNamespace) -> None:
    assert cards.visible_names() == (H100, H100)
    assert nvml.calls == ["init"]
    assert (cards.name(Device("cuda", 1)), cards.name(Device("cuda"))) == (H100, H100)
    assert (cards.name(Device("cuda", 2)), cards.name(Device("cpu"))) == (None, None)
    assert nvml.calls == ["init"]  # it is slow


def test_it_is_opened_once_and_closed_once(nvml: SimpleNamespace) -> None:
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: [MINE]
    cards.close()
    assert nvml.calls == []  # not asked yet
    assert (cards.visible_names(), cards.this_process(Device("cuda", 1))) == ((H100, H100), 100)
    assert nvml.calls == ["init"]
    cards.close()
    cards.close()
    assert nvml.calls == ["init", "shutdown"]
    assert cards.other_processes(Device("cuda", 0)) == 0
    assert nvml.calls == ["init", "shutdown", "init"]


def test_a_forked_process_opens_and_closes_its_own(nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cards.visible_names() == (H100, H100)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a child
    cards.close()
    assert nvml.calls == ["init", "init", "shutdown"]  # the library counts: what the parent opened stays open


def test_a_library_that_cannot_be_closed(nvml: SimpleNamespace) -> None:
    def fail() -> None:
        nvml.calls.append("failed")
        raise NVMLError("Driver/library version mismatch")

    assert cards.visible_names() == (H100, H100)
    nvml.nvmlShutdown = fail
    cards.close()
    cards.close()
    assert nvml.calls == ["init", "failed"]


def test_old_bindings_give_bytes(nvml: SimpleNamespace) -> None:
    nvml.names = [T4.encode()]
    assert cards.visible_names() == (T4,)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("0", (H100,)),
        ("1,0", (T4, H100)),
        (" 1 , 0 ", (T4, H100)),
        ("", ()),
        ("-1", ()),
        ("2", ()),
        ("0,2", ()),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", ()),
        ("MIG-1", ()),
    ],
)
def test_the_visible_cards(
    nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, visible: str, names: tuple[str, ...]
) -> None:
    nvml.names = [H100, T4]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cards.visible_names() == names


def test_mixed_cards_in_an_unknown_order_are_not_named(nvml: SimpleNamespace) -> None:
    nvml.names = [H100, T4]
    assert cards.visible_names() == ()


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName"])
def test_a_library_that_fails_tells_nothing(
    nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*arguments: object) -> None:
        raise NVMLError("Driver Not Loaded")

    setattr(nvml, broken, fail)
    assert cards.visible_names() == ()
    assert nvml.calls == ([] if broken == "nvmlInit" else ["init"])


def process(pid: int, size: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=size)


MINE = process(os.getpid(), 100)


@pytest.mark.parametrize(
    ("processes", "others", "own"),
    [
        ([MINE], 0, 100),
        ([process(1, 7), MINE, process(2, 30)], 37, 100),
        ([process(1, None), MINE], None, 100),  # the driver does not tell
        ([process(1, 7), process(os.getpid(), None)], 7, None),
        ([process(1, 7)], None, None),  # ids of another namespace: one of them may be this process
        ([], None, None),
    ],
)
def test_what_processes_hold(
    nvml: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    processes: list[SimpleNamespace],
    others: int | None,
    own: int | None,
) -> None:
    asked: list[int] = []

    def running(handle: int) -> list[SimpleNamespace]:
        asked.append(handle)
        return processes

    nvml.nvmlDeviceGetComputeRunningProcesses = running
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert cards.other_processes(Device("cuda", 0)) == others
    assert asked == [1]
    assert cards.this_process(Device("cuda", 0)) == own
    assert cards.other_processes(Device("cpu")) is None
    assert cards.other_processes(Device("cuda", 5)) is None


def test_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert cards.visible_names() == ()
    assert cards.name(Device("cuda", 0)) is None
    assert cards.other_processes(Device("cuda", 0)) is None
    assert cards.this_process(Device("cuda", 0)) is None


@pytest.mark.parametrize(
    ("worker", "visible", "count", "card"),
    [
        (0, None, 2, "0"),
        (1, None, 2, "1"),
        (5, None, 2, "1"),
        (0, None, 0, None),
        (1, "3, 5,7", 8, "5"),
        (3, "3,5,7", 8, "3"),
        (1, "GPU-aa,GPU-bb", 8, "GPU-bb"),
        (0, "", 8, None),
    ],
)
def test_each_process_has_a_card(worker: int, visible: str | None, count: int, card: str | None) -> None:
    assert cards.share(worker, visible, count) == card
