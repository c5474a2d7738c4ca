"""One grammar for all limits, and the only code that compares measurements with them.

A size alone means *at most*; ``at_least`` is the only lower bound. A limit holds for each measured device, or for a
kind of device, or for one. Several budgets can apply to one test: the nearest wins for each metric and device, and
within one budget the most specific device. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import format_size, parse_size
from cudamem_testing.model.windows import Window
from cudamem_testing.show.usage import hide_wrong_arguments

__tracebackhide__ = hide_wrong_arguments

T = TypeVar("T")
SIZES = ("peak", "reserved", "retained")
COUNTS = ("allocations", "retries")
SHARES = ("fragmentation",)
METRICS = (*SIZES, *COUNTS, *SHARES)
Side = Literal["at most", "at least"]


class LimitError(ValueError):
    """A wrong budget, one problem per line in ``problems``."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on one metric; ``value`` is ``None`` if a nearer budget lifts a farther one.

    It is in bytes, a count, or for a share in hundredths of a percent.
    ``device`` is ``None`` for every measured device. ``absolute`` judges ``peak`` and ``reserved`` themselves instead
    of their growth above the window's start.
    """

    metric: str
    value: int | None
    side: Side = "at most"
    device: Device | None = None
    absolute: bool = False

    def covers(self, device: Device) -> bool:
        """Whether the limit applies to the device; pinned host memory must be named."""
        return not device.pseudo if self.device is None else self.device.covers(device)

    def measured(self, window: Window) -> int | None:
        """The number in ``window`` that the limit is about; ``None`` if unknown."""
        if self.metric == "peak":
            return window.peak if self.absolute else window.peak_growth
        if self.metric == "reserved":
            return window.reserved_peak if self.absolute else window.reserved_growth
        value: int | None = getattr(window, self.metric)
        return value

    def judge(self, window: Window) -> Breach | None:
        """The breach of this limit by ``window``, or ``None`` if it holds or cannot be judged."""
        measured = self.measured(window)
        if measured is None or self.value is None:
            return None
        broken = measured > self.value if self.side == "at most" else measured < self.value
        return Breach(self, self.value, measured, window) if broken else None

    def text(self, number: int) -> str:
        """A number of this metric for people."""
        if self.metric in SHARES:
            return f"{number / 100:.1f} %"
        return format_size(number) if self.metric in SIZES else str(number)


@dataclass(frozen=True, slots=True)
class Breach:
    """A broken limit, with the window that broke it."""

    limit: Limit
    bound: int
    measured: int
    window: Window

    @property
    def excess(self) -> int:
        """The excess over the limit; positive, in bytes for sizes."""
        return abs(self.measured - self.bound)


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one marker, option or call, and its number of warm-up runs."""

    limits: tuple[Limit, ...]
    warmup: int = 0
    source: str = ""

    def __str__(self) -> str:
        return ", ".join(
            f"{limit.metric} {limit.side} {'anything' if limit.value is None else limit.text(limit.value)}"
            + (f" on {limit.device}" if limit.device else "")
            for limit in self.limits
        )


def budget(
    *,
    peak: object = None,
    reserved: object = None,
    retained: object = None,
    allocations: object = None,
    retries: object = None,
    fragmentation: object = None,
    at_least: object = None,
    device: object = None,
    absolute: object = False,
    warmup: object = 0,
    source: str = "",
) -> Budget:
    """Parse the arguments of a budget.

    Each metric takes a size (bytes or text; a count for ``allocations`` and ``retries``, a share such as ``"20%"`` for
    ``fragmentation``) or a mapping from a device or kind of device to one; ``None`` in a mapping lifts an outer limit
    there. ``at_least`` is a size (for ``peak``) or a mapping from metric to what that metric's argument takes.

    Raises:
        LimitError: that names every wrong argument.
    """
    problems: list[str] = []
    scope: Device | None = None
    if device is not None:
        try:
            scope = Device.parse(device)
        except ValueError as error:
            problems.append(str(error))
    if not isinstance(absolute, bool):
        problems.append(f"absolute={absolute!r} is not True or False")
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
        problems.append(f"warmup={warmup!r} is not a number of runs")
    limits: list[Limit] = []
    above: Iterable[tuple[str, object]] = (
        ("peak", peak),
        ("reserved", reserved),
        ("retained", retained),
        ("allocations", allocations),
        ("retries", retries),
        ("fragmentation", fragmentation),
    )
    below = at_least.items() if isinstance(at_least, Mapping) else (("peak", at_least),)
    sides: tuple[tuple[Side, Iterable[tuple[str, object]]], ...] = (("at most", above), ("at least", below))
    for side, given in sides:
        for metric, value in given:
            if metric not in METRICS:
                problems.append(f"at_least has the unknown metric {metric!r}: write {', '.join(METRICS)}")
            elif value is not None:
                limits += _limits(metric, value, side, scope, absolute is True, problems)
    problems += contradictions(limits)
    if not limits and not problems and not warmup:
        problems.append("sets no limit: write for example peak='512MiB'")
    if problems:
        raise LimitError(problems)
    return Budget(tuple(limits), warmup if isinstance(warmup, int) else 0, source)


def called(make: Callable[..., T], args: Sequence[object], kwargs: Mapping[str, object], example: str) -> T:
    """What a function makes of the arguments of a marker; ``example`` is the name of one of them.

    Raises:
        LimitError: that names every wrong argument.
    """
    known = {*inspect.signature(make).parameters} - {"source"}
    if args:
        raise LimitError([f"takes keyword arguments only, such as {example}={args[0]!r}"])
    if unknown := sorted(kwargs.keys() - known):
        raise LimitError([f"has no argument {', '.join(unknown)}: it takes {', '.join(sorted(known))}"])
    try:
        return make(**kwargs)
    except ValueError as error:
        raise LimitError(getattr(error, "problems", (str(error),))) from error


def parse_budget(text: str, source: str = "") -> Budget:
    """The budget of ``--cudamem-budget``: ``peak=2GiB,retained=0``.

    Raises:
        LimitError: that names every wrong part.
    """
    arguments: dict[str, object] = {}
    problems: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        metric, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or metric not in METRICS:
            problems.append(f"{part!r} is not METRIC=SIZE with a metric of {', '.join(METRICS)}")
        elif metric in arguments:
            problems.append(f"{metric} is given twice")
        else:
            arguments[metric] = value if metric in SIZES or not value.isdecimal() else int(value)
    try:
        parsed = budget(**arguments, source=source)
    except LimitError as error:
        problems += [] if problems and not arguments else error.problems
        raise LimitError(problems) from None
    if problems:
        raise LimitError(problems)
    return parsed


def effective(budgets: Sequence[Budget], device: Device) -> tuple[Limit, ...]:
    """The limits that apply on ``device``: for each metric and side the nearest budget's most specific one.

    ``budgets`` come nearest first. A limit lifted with ``None`` is left out.
    """
    chosen: dict[tuple[str, Side], Limit] = {}
    for one in budgets:
        fitting = sorted((limit for limit in one.limits if limit.covers(device)), key=_specificity, reverse=True)
        nearest = {(limit.metric, limit.side): limit for limit in reversed(fitting)}
        for key, limit in nearest.items():
            chosen.setdefault(key, limit)
    order = {metric: place for place, metric in enumerate(METRICS)}
    found = (limit for limit in chosen.values() if limit.value is not None)
    return tuple(sorted(found, key=lambda limit: (order[limit.metric], limit.side != "at most")))


def clashes(budgets: Sequence[Budget]) -> list[str]:
    """The contradictions of several budgets of one test on each device, sorted."""
    scopes = {limit.device or Device("cpu") for one in budgets for limit in one.limits}
    return sorted({clash for scope in scopes for clash in contradictions(effective(budgets, scope))})


def contradictions(limits: Iterable[Limit]) -> list[str]:
    """Messages for lower bounds above the upper bound of the same metric on the same device."""
    one = Budget(tuple(limits))
    named = {limit.device for limit in one.limits if limit.device is not None}
    found: dict[str, None] = {}
    for device in sorted(named | {Device("cpu"), Device("cuda"), Device("host")}, key=str):
        bounds = {(limit.metric, limit.side): limit for limit in effective((one,), device)}
        for (metric, side), low in bounds.items():
            high = bounds.get((metric, "at most"))
            if side == "at most" or high is None or low.value is None or high.value is None:
                continue
            if low.value > high.value:
                texts = low.text(low.value), high.text(high.value)
                found[f"at_least {metric} of {texts[0]} is above the limit of {texts[1]}"] = None
    return list(found)


def _specificity(limit: Limit) -> tuple[bool, bool]:
    return limit.device is not None, limit.device is not None and limit.device.index is not None


def _limits(
    metric: str, value: object, side: Side, scope: Device | None, absolute: bool, problems: list[str]
) -> list[Limit]:
    found: list[Limit] = []
    by_device = value.items() if isinstance(value, Mapping) else ((scope, value),)
    if isinstance(value, Mapping) and not value:
        problems.append(f"{metric}={{}} names no device")
    for key, size in by_device:
        try:
            device = None if key is None else Device.parse(key)
            if isinstance(value, Mapping) and scope is not None and device is not None and not scope.covers(device):
                raise ValueError(f"names {device} beside device={scope}")
            number = None if size is None else _PARSERS.get(metric, parse_size)(size)
        except ValueError as error:
            problems.append(f"{metric}: {error}")
            continue
        if any(limit.device == device for limit in found):
            problems.append(f"{metric} names {device} twice")
        found.append(Limit(metric, number, side, device, absolute))
    return found


def _parse_count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a count: write an int of 0 or more")
    return value


def _parse_share(value: object) -> int:
    """Hundredths of a percent; a fraction of one is dropped."""
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    hundredths = int(match[1] + (match[2] or "").ljust(2, "0")[:2]) if match else -1
    if not 0 <= hundredths <= 10_000:
        raise ValueError(f"{value!r} is not a share: write a percentage, such as '20%'")
    return hundredths


_SHARE = re.compile(r"(\d{1,3})(?:\.(\d{1,9}))?\s*%", re.ASCII)
_PARSERS = {**dict.fromkeys(COUNTS, _parse_count), **dict.fromkeys(SHARES, _parse_share)}
