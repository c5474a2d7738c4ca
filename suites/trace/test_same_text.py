"""One text on every device: a dozen programs against texts recorded on the CPU, and a card against the CPU."""

from __future__ import annotations

import pytest
import torch

from cudamem_testing.records.expected.difference import difference
from suites.trace.programs import PROGRAMS, TEXTS, TORCH, recorded


def text_on(name: str, device: str) -> str:
    flow = recorded(name, device).data_flow()
    assert flow.diagnostics == ()
    return flow.text(**PROGRAMS[name].options)


@pytest.mark.skipif(not torch.__version__.startswith(TORCH), reason=f"the texts were recorded with torch {TORCH}")
@pytest.mark.parametrize("name", PROGRAMS)
def test_text_as_recorded(name: str) -> None:
    kept = (TEXTS / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")
    found = text_on(name, "cpu")
    assert kept == found, difference(kept, found)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_card_has_the_text_of_the_cpu(name: str) -> None:
    expected, found = text_on(name, "cpu"), text_on(name, "cuda")
    assert expected == found, difference(expected, found)


def test_every_text_has_its_program() -> None:
    assert {path.stem for path in TEXTS.iterdir()} == {*PROGRAMS}
    assert len(PROGRAMS) >= 10
