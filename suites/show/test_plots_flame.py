"""Flame graphs: where boxes lie, and a file that opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.devices import Device
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.show.plots.flame import Box, FlameCall, boxes

CPU = Device("cpu")
A, B, C, D = (FlameCall(name) for name in "abcd")


def test_calls_of_several_stacks_are_one_box() -> None:
    found = sorted(boxes([((A, B), 3), ((A, C), 5), ((A, C, D), 2), ((D,), 1)]), key=lambda box: (box.depth, box.start))
    assert found == [
        Box(A, 0, 0, 10),
        Box(D, 0, 10, 1),
        Box(C, 1, 0, 7),
        Box(B, 1, 7, 3),
        Box(D, 2, 0, 2),
    ]


def test_deep_stacks_need_no_deep_calls() -> None:
    deep = tuple(FlameCall(str(number)) for number in range(5000))
    assert len([*boxes([(deep, 1)])]) == 5000


def live() -> LiveSet:
    stack = Stack((Frame("torch/nn.py", 3, "linear", "library"), Frame("a.py", 1, "f$_{\x1b")))
    blocks = (Block(100, 100, CPU, stack=stack), Block(50, 50, CPU, owner="test_b", preexisting=True), Block(9, 9, CPU))
    return LiveSet(CPU, blocks)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_live_set_is_drawn(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra plot)")
    path = live().flamegraph(tmp_path / f"a.{ending}")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    if ending == "svg":
        assert b"159 B in 3 blocks on cpu" in content
        assert rb"\x1b" in content


def test_another_ending_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra plot)")
    with pytest.raises(ValueError, match=r"a picture is written as \.png or \.svg, not as 'a\.pdf'"):
        live().flamegraph(tmp_path / "a.pdf")


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'cudamem_testing\[plot\]'"):
        live().flamegraph(tmp_path / "a.png")
