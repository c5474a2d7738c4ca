"""Lifetimes: one bar for each tensor from the step that made it to the step that freed it, as a page without a network.

Bars lie upon each other as in memory: a bar is as high as its bytes, and no two share a place at one time. Places are
handed out first-fit, the order in which the bars begin, so that what stays longest lies lowest. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cudamem_testing.show.pages import page
from cudamem_testing.show.plots.style import CATEGORY_COLOURS


@dataclass(frozen=True, slots=True)
class Bar:
    """A tensor: what it is called, its bytes and device, the steps during which it lives, and what it is for.

    ``first`` is the step that makes it (-1 if it existed before), ``last`` the one that frees it (the number of
    steps for what stays). ``kind`` is its category, ``detail`` what a click shows, ``uses`` the steps that take it.
    """

    label: str
    size: int
    device: str
    first: int
    last: int
    kind: str = "unknown"
    detail: str = ""
    uses: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorStep:
    """An operator: its name, the calls of modules around it from the outside in, and what a click shows.

    A call is the module's name and a number that other calls of it do not have.
    """

    label: str
    modules: tuple[tuple[str, int], ...] = ()
    backward: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Bars over steps; ``notes`` say what is left out."""

    bars: tuple[Bar, ...]
    steps: tuple[OperatorStep, ...]
    title: str = ""
    notes: tuple[str, ...] = ()

    def html(self) -> str:
        """One file with everything in it: zoom with the wheel or keys, search, click a bar or an operator."""
        kinds = {bar.kind for bar in self.bars}
        return page(self.title or "Lifetimes", {**self._data(), "legend": _legend(kinds)}, "lifetimes")

    def _data(self) -> Mapping[str, object]:
        devices = sorted({bar.device for bar in self.bars}, key=lambda one: -sum(b.size for b in self._on(one)))
        calls: dict[tuple[str, int], int] = {}
        for step in self.steps:
            for call in step.modules:
                calls.setdefault(call, len(calls))
        steps = [
            [step.label, [calls[call] for call in step.modules], int(step.backward), step.detail] for step in self.steps
        ]
        bars = []
        for device, name in enumerate(devices):
            some = self._on(name)
            for bar, place in zip(some, places(some), strict=True):
                span = [bar.first, bar.last, place, bar.size]
                bars.append([bar.label, device, *span, bar.kind, bar.detail, list(bar.uses)])
        return {
            "bars": bars,
            "steps": steps,
            "modules": [name for name, _ in calls],
            "devices": devices,
            "notes": self.notes,
        }

    def _on(self, device: str) -> list[Bar]:
        return [bar for bar in self.bars if bar.device == device]

    def __str__(self) -> str:
        return "\n".join(f"{bar.label}: {bar.size} B, steps {bar.first} to {bar.last}" for bar in self.bars)


def _legend(kinds: set[str]) -> list[tuple[str, str]]:
    return [(name, colour) for name, colour in CATEGORY_COLOURS.items() if name in kinds]


def places(bars: Sequence[Bar]) -> list[int]:
    """For each bar the lowest place, in bytes, where it has room from its first step to its last.

    First-fit by begin, the longer of equals first: quadratic in the number of bars that live at one time.
    """
    found = [0] * len(bars)
    live: list[tuple[int, int, int]] = []  # place, end, last step; sorted by place
    for number in sorted(range(len(bars)), key=lambda one: (bars[one].first, -bars[one].last, -bars[one].size)):
        bar = bars[number]
        live = [one for one in live if one[2] > bar.first]
        place = 0
        for start, end, _ in live:
            if start - place >= bar.size:
                break
            place = max(place, end)
        found[number] = place
        insort(live, (place, place + bar.size, bar.last))
    return found
