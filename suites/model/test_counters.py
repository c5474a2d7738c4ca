"""Counters: unknown unless told, zero before a device is used."""

from __future__ import annotations

from cudamem_testing.model.counters import PEAKS, ZERO, Counters


def test_counters_are_unknown_by_default() -> None:
    assert Counters() == (*[None] * 12, ())


def test_zero_knows_everything() -> None:
    assert (*[0] * 12, ()) == ZERO
    assert Counters._fields[-1] == "notes"


def test_each_peak_belongs_to_a_level() -> None:
    assert [name.removesuffix("_peak") for name in PEAKS] == ["allocated", "requested", "reserved", "active"]
    assert {*PEAKS} == {name for name in Counters._fields if name.endswith("_peak")}
