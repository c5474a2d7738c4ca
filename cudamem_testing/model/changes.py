"""Compares a number with the recorded one, within a tolerance.

Limits compare with a bound that the user wrote (:mod:`limits`); here the bound was measured before. A tolerance is
``5%|10MiB``: whichever allows more. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cudamem_testing.model.limits import LimitError
from cudamem_testing.model.sizes import format_size, parse_size
from cudamem_testing.model.stacks import Frame
from cudamem_testing.show.usage import hide_wrong_arguments

__tracebackhide__ = hide_wrong_arguments

SIZES = ("requested", "peak", "reserved", "retained")
COUNTS = ("allocations", "segments", "retries")
#: Metrics that a baseline can hold; by default only ``requested``.
TRACKED = (*SIZES, *COUNTS)
#: Metrics that are judged as growth above the start of the test's call.
ABOVE_START = ("requested", "peak", "reserved")
_PERCENT = re.compile(r"(\d{1,6})(?:\.(\d{1,4}))?\s*%", re.ASCII)
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed difference: the larger of a share (in millionths) and bytes for sizes, or a number for counts."""

    millionths: int = 0
    bytes: int = 0
    number: int = 0
    text: str = "0"

    @classmethod
    def parse(cls, value: object) -> Tolerance:
        """The tolerance meant by ``"5%|10MiB"``, ``"1%"``, ``"64KiB"``, ``0``.

        A number without a unit is bytes for a size and itself for a count; one with a unit is ignored for counts.

        Raises:
            ValueError: for anything else, with what is accepted.
        """
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"tolerance {value!r} is not understood: write for example '5%|10MiB'")
        text = str(value).strip()
        millionths, sizes, numbers = 0, [0], [0]
        for part in text.split("|"):
            percent = _PERCENT.fullmatch(part.strip())
            if percent is not None:
                millionths = max(millionths, int(percent[1] + (percent[2] or "").ljust(4, "0")))
                continue
            try:
                sizes.append(int(part) if part.strip().isdecimal() else parse_size(part))
            except ValueError:
                raise ValueError(
                    f"tolerance {text!r} has the part {part.strip()!r}: write a share such as 5%, a size such as "
                    "10MiB, or both with | between them"
                ) from None
            if part.strip().isdecimal():
                numbers.append(int(part))
        return cls(millionths, max(sizes), max(numbers), text)

    def slack(self, metric: str, recorded: int) -> int:
        """How far a number of this metric may be from the recorded one, in its own unit."""
        share = abs(recorded) * self.millionths // _MILLION
        return max(share, self.number if metric in COUNTS else self.bytes)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Spread:
    """The lowest and the highest value of one run, or of several."""

    low: int
    high: int

    @classmethod
    def of(cls, *numbers: int) -> Spread:
        """The spread of some numbers, at least one."""
        return cls(min(numbers), max(numbers))

    def __or__(self, other: Spread) -> Spread:
        return Spread(min(self.low, other.low), max(self.high, other.high))

    def __contains__(self, other: Spread) -> bool:
        return self.low <= other.low and other.high <= self.high

    def text(self, metric: str) -> str:
        """For people: ``512.0 MiB``, ``512.0 MiB to 513.0 MiB``, ``7``."""
        ends = [shown(metric, number) for number in dict.fromkeys((self.low, self.high))]
        return " to ".join(ends)


@dataclass(frozen=True, slots=True)
class ChangedPlace:
    """A line of code whose live bytes differ from the recorded ones.

    ``before`` is ``None`` for a line that is not among the recorded ones, which then had ``hidden`` bytes at most; a
    line that is gone has ``after`` 0. ``saved`` and ``saved_before`` are what autograd kept of it for backward.
    ``text`` is what is written there, ``was`` what was written there before if that was something else. ``call`` is the
    library call behind the line, ``caller`` the project's line that called its function. ``recorded`` is whether
    autograd records the line's operators now and did not before. Where a baseline has functions alone, ``line`` is the
    function's line of most bytes, the last of equals, and ``numbers`` are those of all its lines. ``result`` is a later
    line with as many live blocks, where all was made in grad mode and no backward pass freed it: what each call made
    stays with its result, as a graph does with a loss.
    """

    place: str
    line: Frame | None
    numbers: tuple[int, ...]
    before: int | None
    after: int
    hidden: int = 0
    saved: int = 0
    saved_before: int = 0
    blocks: int = 0
    blocks_before: int = 0
    text: str = ""
    was: str = ""
    call: str = ""
    caller: Frame | None = None
    recorded: bool = False
    result: Frame | None = None

    @property
    def growth(self) -> int:
        """Bytes more than before, at least; negative where they are less."""
        return self.after - (self.hidden if self.before is None else self.before)

    @property
    def is_for_backward(self) -> bool:
        """Whether most of the growth is kept by autograd."""
        return self.growth > 0 and (self.recorded or self.growth <= 2 * (self.saved - self.saved_before))

    @property
    def factor(self) -> int | None:
        """How many times as large each of as many blocks is, if that is 2, 4 or 8."""
        if not self.before or self.blocks != self.blocks_before:
            return None
        return next((factor for factor in (2, 4, 8) if self.after == factor * self.before), None)


@dataclass(frozen=True, slots=True)
class Change:
    """One metric before and after; ``slack`` is what its tolerance allows, in the metric's unit."""

    metric: str
    before: Spread
    after: Spread
    slack: int = 0

    @property
    def growth(self) -> int:
        """How far it is above the highest recorded value, or (negative) below the lowest; 0 between them."""
        if self.after.high > self.before.high:
            return self.after.high - self.before.high
        return min(0, self.after.low - self.before.low)

    @property
    def grew(self) -> bool:
        """Whether it is above the recorded value by more than the tolerance."""
        return self.growth > self.slack

    @property
    def shrank(self) -> bool:
        """Whether it is below the recorded value by more than the tolerance: an improvement."""
        return self.growth < -self.slack

    @property
    def share(self) -> str:
        """The growth as a share of the recorded value, ``+19.5%``; empty if that was 0."""
        base = abs(self.before.high if self.growth > 0 else self.before.low)
        if not base:
            return ""
        tenths = (abs(self.growth) * 2000 + base) // (2 * base)
        return f"{'-' if self.growth < 0 else '+'}{tenths // 10}.{tenths % 10}%"


#: How far a simulated card may be from the real one that a baseline was recorded on (docs/simulated.md).
SIMULATED_MARGINS = {
    metric: Tolerance.parse("5%|2MiB" if metric == "reserved" else "3%|64KiB")
    for metric in TRACKED
    if metric not in COUNTS
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Which metrics of a test are compared with its baseline, the tolerance, and the number of warm-up runs."""

    metrics: tuple[str, ...] = ("requested",)
    tolerance: Tolerance = Tolerance(10_000, 64 * 1024, 0, "1%|64KiB")
    warmup: int = 0

    on_card: bool = True

    def on_simulated_card(self) -> Comparison:
        """The same with the margin of a simulated card, where a real one's baseline is compared: of sizes alone."""
        sizes = tuple(metric for metric in self.metrics if metric not in COUNTS)
        return replace(self, metrics=sizes, on_card=False)

    def change(self, metric: str, before: Spread, after: Spread) -> Change:
        """The change of one metric under this tolerance, or under the margin of a simulated card if that is larger."""
        slack = self.tolerance.slack(metric, before.high)
        if not self.on_card:
            slack = max(slack, SIMULATED_MARGINS[metric].slack(metric, before.high))
        return Change(metric, before, after, slack)


def comparison(*, tolerance: object = "1%|64KiB", metrics: object = ("requested",), warmup: object = 0) -> Comparison:
    """Parse the arguments of a comparison; ``metrics`` is a name or several.

    Raises:
        LimitError: that names every wrong argument.
    """
    problems: list[str] = []
    allowed = Tolerance()
    try:
        allowed = Tolerance.parse(tolerance)
    except ValueError as error:
        problems.append(str(error))
    names = parse_metrics(metrics, problems)
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
        problems.append(f"warmup={warmup!r} is not a number of runs")
    if problems:
        raise LimitError(problems)
    return Comparison(names, allowed, warmup if isinstance(warmup, int) else 0)


def parse_metrics(given: object, problems: list[str]) -> tuple[str, ...]:
    """The metrics in the order of reports; errors are added to ``problems``."""
    names = [given] if isinstance(given, str) else [*given] if isinstance(given, Iterable) else []
    unknown = [name for name in names if name not in TRACKED]
    if unknown or not names:
        shown_ = ", ".join(map(repr, unknown)) or repr(given)
        problems.append(f"metrics {shown_} is not known: write some of {', '.join(TRACKED)}")
    return tuple(name for name in TRACKED if name in names)


def parse_conditions(texts: Iterable[str]) -> dict[str, Tolerance]:
    """The tolerances by metric of texts such as ``requested:5%|10MiB``.

    Raises:
        ValueError: if a text is invalid, or two have the same metric.
    """
    found: dict[str, Tolerance] = {}
    for text in texts:
        metric, colon, tolerance = text.partition(":")
        metric = metric.strip()
        if not colon or metric not in TRACKED:
            raise ValueError(f"{text!r} is not METRIC:TOLERANCE with a metric of {', '.join(TRACKED)}")
        if metric in found:
            both = f"{found[metric]}|{tolerance.strip()}"
            raise ValueError(f"{metric} has two tolerances: write '{metric}:{both}', of which the larger one counts")
        found[metric] = Tolerance.parse(tolerance)
    return found


def shown(metric: str, number: int) -> str:
    """A number of a metric for people."""
    return str(number) if metric in COUNTS else format_size(number)
