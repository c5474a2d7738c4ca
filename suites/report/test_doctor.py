"""The doctor: what can be measured here, through the command line too."""

from __future__ import annotations

import pytest

from cudamem_testing import torch_api
from cudamem_testing.__main__ import main
from cudamem_testing.recorders import build, cards, cpu, host
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.report import doctor
from cudamem_testing.report.doctor import examine
from suites.recorders.allocator import Allocator
from suites.windows.fake import FakeRecorder

PARTLY = "measured by torch's profiler: other threads and older blocks are not seen"
SIMULATED = "with --cudamem-device=simulated (docs/simulated.md)"
ONLY = "on cpu only tests with a limit or a window are measured, and incompletely"


@pytest.fixture(autouse=True)
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a card."""
    monkeypatch.setattr(torch_api, "version", lambda: "2.13.0")
    monkeypatch.setattr(torch_api, "cuda_device_count", lambda: 0)
    monkeypatch.setattr(torch_api, "allocator_backend", lambda: "cpu")
    monkeypatch.setattr(cards, "visible_names", tuple)
    monkeypatch.setattr(doctor, "unavailable", lambda: None)


def test_a_laptop() -> None:
    assert examine().rows == (
        ("torch", "2.13.0"),
        ("cpu", "measured completely"),
        ("allocator", "cpu"),
        ("simulated card", SIMULATED),
    )


def test_a_card_and_its_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_api, "allocator_backend", lambda: "native")
    monkeypatch.setattr(cards, "visible_names", lambda: ("NVIDIA H100",))
    monkeypatch.setattr(host, "measurable", lambda: True)
    monkeypatch.setattr(host, "HostRecorder", lambda counters: FakeRecorder("host"))
    with Allocator().in_place():
        rows = examine().rows
    assert rows == (
        ("torch", "2.13.0"),
        ("cuda:0 (NVIDIA H100)", "measured completely"),
        ("cpu", "measured completely"),
        ("host", "measured completely"),
        ("allocator", "native"),
    )


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise RecorderUnavailable("no C++ compiler found: install one")

    monkeypatch.setattr(cpu, "CpuRecorder", refuse)
    monkeypatch.setattr(build, "obstacle", lambda library: f"{library.title}: no C++ compiler found")
    assert examine().lines(header=False) == [
        "torch           2.13.0",
        f"cpu             {PARTLY}; leaks and cycles are not checked",
        "allocator       cpu",
        f"note            no C++ compiler found: install one; {ONLY}",
        "simulated card  the simulated card: no C++ compiler found",
    ]


def test_another_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_api, "allocator_backend", lambda: "cudaMallocAsync")
    monkeypatch.setattr(cards, "visible_names", lambda: ("NVIDIA H100",))
    monkeypatch.setattr(host, "measurable", lambda: False)
    with Allocator().in_place():
        rows = dict(examine().rows)
    only = "allocator cudaMallocAsync counts allocated and reserved bytes only"
    assert rows["cuda:0 (NVIDIA H100)"] == f"{only}; leaks are looked for among objects"
    assert rows["cpu"] == "measured completely"


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_api, "version", lambda: None)
    assert examine().rows == (("torch", "not installed: pip install torch"),)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = (
        "torch           2.13.0",
        "cpu             measured completely",
        "allocator       cpu",
        f"simulated card  {SIMULATED}",
    )
    assert capsys.readouterr() == ("".join(f"{line}\n" for line in lines), "")


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "the following arguments are required: COMMAND" in capsys.readouterr().err
