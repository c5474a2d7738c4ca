"""Lines about tests and their numbers before and now, the parameters of one test in one line. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cudamem_testing.model.baselines import Entry
from cudamem_testing.model.changes import Spread, shown
from cudamem_testing.model.sizes import from_to, without_unit


class Numbers(NamedTuple):
    """One metric before and now."""

    metric: str
    before: Spread
    after: Spread

    def __or__(self, other: Numbers) -> Numbers:
        return Numbers(self.metric, self.before | other.before, self.after | other.after)

    def __str__(self) -> str:
        """``peak 1.0 -> 0.5 MiB``: the unit once where both have the same."""
        before, after = (_text(self.metric, spread) for spread in (self.before, self.after))
        name = "peak" if self.metric == "requested" else self.metric
        return f"{name} {without_unit(before, after)} -> {after}"


def numbers_of(before: Entry, after: Entry) -> tuple[Numbers, ...]:
    """The metrics of both that differ."""
    both = [Numbers(name, before.values[name], after.values[name]) for name in after.values if name in before.values]
    return tuple(one for one in both if one.before != one.after)


def folded(tests: Iterable[tuple[str, Sequence[Numbers]]], most: int) -> list[str]:
    """A line for each test, one for all parameters of a test with the range of their numbers."""
    found: dict[tuple[str, tuple[str, ...]], list[tuple[str, Sequence[Numbers]]]] = {}
    for name, numbers in tests:
        key = name.partition("[")[0], tuple(one.metric for one in numbers)
        found.setdefault(key, []).append((name, numbers))
    lines = [_line(name, some) for (name, _), some in found.items()]
    rest = [f"... {len(lines) - most} more"] if len(lines) > most else []
    return [f"  {line}" for line in [*lines[:most], *rest]]


def _line(name: str, some: Sequence[tuple[str, Sequence[Numbers]]]) -> str:
    ranges: dict[str, Numbers] = {}
    for _, numbers in some:
        for one in numbers:
            ranges[one.metric] = ranges[one.metric] | one if one.metric in ranges else one
    title = some[0][0] if len(some) == 1 else f"{name}[...] x {len(some)}"
    return f"{title}: {', '.join(map(str, ranges.values())) or 'other metrics'}"


def _text(metric: str, spread: Spread) -> str:
    """``1.0 MiB``, ``1.0 to 4.0 MiB``."""
    return from_to(shown(metric, spread.low), shown(metric, spread.high))
