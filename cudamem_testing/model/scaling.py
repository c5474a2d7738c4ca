"""Compares the growth of memory with the size of an input to a promise.

Only differences between three or more measured sizes count, so a constant part does not matter. Between two
neighbouring sizes memory has a slope: added bytes for each step of the promised growth (for ``O(n^2)``: for each
``n^2`` more). If memory grows as promised, slopes do not rise. Small sizes may hide the slope behind a constant, such
as the peak of another phase, so the last :data:`JUDGED` slopes decide; if the sizes before them are on one level, and
the slopes after it may be only a beginning, nothing is decided. Neither is it if the last slope is not the steepest:
memory that is rounded up to blocks of a fixed size rises unevenly, and grows as promised all the same.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cudamem_testing.model.devices import Device
from cudamem_testing.model.entered import Result
from cudamem_testing.model.promises import Factor, Promise
from cudamem_testing.model.sizes import format_size, parse_size
from cudamem_testing.show.tables import Column, Table

JUDGED = 2
#: By how much a slope may rise: ``n log n`` rises by 4 % from 2^24 to 2^25, rounding by less.
TOLERANCE = 0.03
#: Allowed error of a measured size, in bytes and as a share: allocators round up, and libraries keep a little.
SLACK, NOISE = 4096, 0.002
SHOWN = 3
#: Powers nearer to 0 are written as a logarithm.
LOGARITHM = 0.02
#: The name of a variable that was not given by name.
UNNAMED = "n"


class Outgrown(AssertionError):  # noqa: N818 - the name of the verdict
    """Memory grows faster than promised."""


class TooFewSizes(ValueError):  # noqa: N818 - what to do about it
    """The sizes do not show how memory grows."""


@dataclass(frozen=True, slots=True)
class Series:
    """Bytes at the sizes of one variable, the others fixed; ``lines`` are bytes at the peak by line of the project."""

    variable: str
    sizes: tuple[int, ...]
    bytes: tuple[int, ...]
    fixed: Mapping[str, int] = field(default_factory=dict)
    lines: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def exponent(self) -> float | None:
        """The power of growth without a constant part, from the last three sizes; ``None`` if nothing grew."""
        if len(self.sizes) < JUDGED + 1:
            return None
        (first, middle, last), (low, mid, high) = self.sizes[-3:], self.bytes[-3:]
        return exponent((first, middle, last), (low, mid, high))

    @property
    def exponent_of_all(self) -> float | None:
        """The power of growth if there were no constant part: the slope of logarithms between the last two sizes.

        ``None`` without memory.
        """
        if len(self.sizes) < JUDGED:
            return None
        (before, last), (low, high) = self.sizes[-2:], self.bytes[-2:]
        return math.log(high / low) / math.log(last / before) if low > 0 < high else None

    def outgrows(self, factor: Factor) -> bool:
        """Whether it grows faster than promised.

        Raises:
            TooFewSizes: if the sizes do not show it.
        """
        rises = [after - before for before, after in pairwise(self.bytes)]
        risen = [rise > SLACK + NOISE * before for rise, before in zip(rises, self.bytes, strict=False)]
        if not risen[-1]:
            return False
        if factor == Factor():
            return risen[-2] or rises[-1] > TOLERANCE * self.bytes[-2]
        values = [factor.at(size) for size in self.sizes]
        steps = [after - before for before, after in pairwise(values)]
        slope, before = rises[-1] / steps[-1], rises[-2] / steps[-2]
        if slope <= before * (1 + TOLERANCE) + SLACK / steps[-1]:
            return False
        steepest = max(rise / step for rise, step in zip(rises[:-1], steps[:-1], strict=True))
        if slope <= steepest * (1 + TOLERANCE) + SLACK / steps[-1]:
            name, last = self.variable, self.sizes[-1]
            raise TooFewSizes(
                f"memory grows in steps: it rose no faster up to {name}={last} than at smaller sizes, and slower in "
                f"between: add {name}={last * 2}, or sizes that are multiples of a step"
            )
        level = risen.index(True)
        if level > 0 and len(risen) - level <= JUDGED:
            raise TooFewSizes(
                f"up to {self.variable}={self.sizes[level]} another part of the memory is larger than what grows: "
                f"add {self.variable}={self.sizes[-1] * 2}, or leave out the smallest sizes"
            )
        return True


@dataclass(frozen=True, slots=True)
class Scaling(Result):
    """Measurements on one device, by variable; ``metric`` says what the bytes are."""

    device: Device
    series: tuple[Series, ...]
    metric: str = "peak"
    notes: tuple[str, ...] = ()

    def assert_peak(self, promise: str, *, per: str | None = None) -> None:
        """Fail if the peak grows faster than promised: ``assert_peak("O(n)")``.

        With ``per`` the promise is about the memory of one unit of a variable: ``assert_peak("O(1)", per="token")`` for
        a variable ``tokens``, or any name if the only variable has none. A size then limits what one more unit adds:
        ``assert_peak("96KiB", per="token")``.

        Raises:
            Outgrown: with the table, the measured power, and the lines that grow fastest.
            TooFewSizes: if the sizes do not show it.
            ValueError: for an invalid promise, or one that names a variable that was not varied.
        """
        __tracebackhide__ = True
        unit = None if per is None else self._varied(per)
        if unit is not None and isinstance(promise, str) and not promise.lstrip().startswith("O"):
            self._assert_each(unit, str(per), parse_size(promise))
            return
        given = Promise.parse(promise)
        varied = [one.variable for one in self.series]
        unknown = [name for name in given.factors if name not in varied]
        if unknown:
            raise ValueError(f"{given.text} names {', '.join(unknown)}, but the run varied {', '.join(varied)}")
        text = given.text if per is None else f"{given.text} per {per}"
        broken = []
        for one in self.series:
            factor = given.of(one.variable)
            if one is unit:
                factor = Factor(factor.power + 1, factor.logarithms)
            if one.outgrows(factor):
                broken.append(one)
        if broken:
            raise Outgrown("\n".join("cudamem: " + "\n".join(self.failure(one, text)) for one in broken))

    def _varied(self, unit: str) -> Series:
        """The series of a variable, whose name may be the plural of its unit."""
        for one in self.series:
            if one.variable in (unit, f"{unit}s") or (len(self.series) == 1 and one.variable == UNNAMED):
                return one
        varied = ", ".join(one.variable for one in self.series)
        raise ValueError(f"per={unit!r}: the run varied {varied}")

    def _assert_each(self, series: Series, unit: str, most: int) -> None:
        __tracebackhide__ = True
        (before, last), (low, high) = series.sizes[-2:], series.bytes[-2:]
        each = (high - low) / (last - before)
        if each * (last - before) > most * (last - before) + SLACK:
            head = (
                f"cudamem: {self.metric} grows by {format_size(round(each))} per {unit}, promised {format_size(most)}"
            )
            raise Outgrown("\n".join((f"{head} ({self.device})", *self._below(series))))

    def failure(self, series: Series, promise: str) -> list[str]:
        """How it grows and what was promised, and below it the table, the fit and the lines that grow fastest."""
        power = series.exponent
        name = series.variable
        grows = "jumps" if power is None else f"grows like {_like(name, power)}"
        return [f"{self.metric} {grows}, promised {promise} ({self.device})", *self._below(series)]

    def _below(self, series: Series) -> list[str]:
        """The table, the fit and the lines that grow fastest."""
        lines = [*self.table(series).lines()]
        power, whole = series.exponent, series.exponent_of_all
        if power is not None and whole is not None:
            name = series.variable
            lines.append(f"fit: {_like(name, power)} and a constant part; {name}^{whole:.2f} without one")
        if series.lines:
            lines += ["grows fastest:", *(f"   {line}" for line in _fastest(series))]
        return [f"   {line}" for line in (*lines, *(f"note: {note}" for note in self.notes))]

    def table(self, series: Series) -> Table:
        """Sizes, bytes, and the power of the growth since the previous size."""
        columns = (Column(series.variable, "right"), Column(self.metric, "right"), Column("grew like", "right"))
        rows = []
        for place, (size, number) in enumerate(zip(series.sizes, series.bytes, strict=True)):
            power = None
            if place > 1:
                power = exponent(series.sizes[place - 2 : place + 1], series.bytes[place - 2 : place + 1])
            rows.append((str(size), format_size(number), "" if power is None else _like(series.variable, power)))
        return Table(columns, tuple(rows))

    def __str__(self) -> str:
        lines = []
        for one in self.series:
            fixed = ", ".join(f"{name}={size}" for name, size in one.fixed.items())
            lines += [f"{self.device}{f' at {fixed}' if fixed else ''}", *self.table(one).lines()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def exponent(sizes: Sequence[int], numbers: Sequence[int]) -> float | None:
    """The power ``p`` for which ``c + b * n^p`` passes through three points; ``None`` if the last two do not rise.

    The ratio of the two rises of ``n^p`` rises with ``p``, so bisection finds it.
    """
    (one, two, three), (low, mid, high) = sizes, numbers
    if not low < mid < high:
        return None
    wanted = math.log((high - mid) / (mid - low))

    def ratio(power: float) -> float:
        if abs(power) < 1e-6:
            return math.log(math.log(three / two) / math.log(two / one))
        return math.log((three**power - two**power) / (two**power - one**power))

    least, most = -8.0, 16.0
    for _ in range(60):
        middle = (least + most) / 2
        if ratio(middle) < wanted:
            least = middle
        else:
            most = middle
    return (least + most) / 2


def _like(variable: str, power: float) -> str:
    """The power as text; beside a constant part, growth by a power of 0 is that of a logarithm."""
    return f"log {variable}" if abs(power) < LOGARITHM else f"{variable}^{power:.2f}"


def _fastest(series: Series) -> list[str]:
    """The lines that grew most between the last two sizes."""
    rises = {line: numbers[-1] - numbers[-2] for line, numbers in series.lines.items()}
    largest = sorted((line for line in rises if rises[line] > 0), key=lambda line: (-rises[line], line))[:SHOWN]
    name, (before, last) = series.variable, series.sizes[-2:]
    return [
        f"{line}  {format_size(series.lines[line][-2])} at {name}={before}, "
        f"{format_size(series.lines[line][-1])} at {name}={last}"
        for line in largest
    ]
