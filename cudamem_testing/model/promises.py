"""Promises of growth: ``O(n)``, ``O(n log n)``, ``O(sqrt(layers))``, ``O(batch * sequence^2)``.

A promise is a product of powers and logarithms of variables. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cudamem_testing.safe_access import is_plain
from cudamem_testing.show.usage import hide_wrong_arguments

__tracebackhide__ = hide_wrong_arguments

_FACTOR = re.compile(
    r"(?P<one>1)(?![\w.^])"
    r"|(?P<function>log|sqrt)\s*(?:\(\s*(?P<inner>[A-Za-z_]\w*)\s*\)|\s(?P<bare>[A-Za-z_]\w*))"
    r"|(?P<name>[A-Za-z_]\w*)(?:\s*(?:\^|\*\*)\s*(?P<power>\d+(?:\.\d+)?))?"
)
EXAMPLES = "O(1), O(n), O(n log n), O(n^2), O(sqrt(n)), O(batch * sequence^2)"


@dataclass(frozen=True, slots=True)
class Factor:
    """The influence of one variable: its power, and the power of its logarithm."""

    power: float = 0.0
    logarithms: int = 0

    def at(self, size: float) -> float:
        """The value at a size of the variable, which is positive; logarithms have base 2."""
        return float(size**self.power * math.log2(size) ** self.logarithms)


@dataclass(frozen=True, slots=True)
class Promise:
    """An upper bound of growth, by variable; memory must not depend on variables that it does not name."""

    text: str
    factors: Mapping[str, Factor]

    @classmethod
    def parse(cls, text: object) -> Promise:
        """Read ``"O(n log n)"``.

        Raises:
            ValueError: for anything else, with what can be written.
        """
        match = re.fullmatch(r"\s*O\s*\((.*)\)\s*", text, re.DOTALL) if isinstance(text, str) else None
        inside = "" if match is None else match[1].strip()
        factors: dict[str, Factor] = {}
        at = 0
        while at < len(inside):
            found = _FACTOR.match(inside, at)
            if found is None:
                break
            _add(factors, found)
            at = found.end()
            between = re.match(r"\s*\*(?!\*)\s*|\s+|(?=$)", inside[at:])
            if between is None or (not inside[at + between.end() :] and between.group().strip()):
                break
            at += between.end()
        if not inside or at < len(inside):
            raise ValueError(f"{text!r} is not a promise of growth: write {EXAMPLES}")
        return cls(f"O({inside})", factors)

    def of(self, name: str) -> Factor:
        """The influence of a variable."""
        return self.factors.get(name, Factor())


def _add(factors: dict[str, Factor], found: re.Match[str]) -> None:
    if found["one"]:
        return
    name = found["inner"] or found["bare"] or found["name"]
    before = factors.get(name, Factor())
    if found["function"] == "log":
        factors[name] = Factor(before.power, before.logarithms + 1)
    else:
        power = 0.5 if found["function"] else float(found["power"] or 1)
        factors[name] = Factor(before.power + power, before.logarithms)


class PromisedSize(NamedTuple):
    """A promise for one size of a parametrized test.

    ``over`` is the parameter, ``sizes`` all its values in the run; ``others`` identify the test's other parameters.
    ``device`` is the only one that counts, ``None`` for each measured one.
    """

    test: str
    others: tuple[tuple[str, str], ...]
    over: str
    size: int
    sizes: tuple[int, ...]
    promise: str
    device: str | None = None


def memory_scaling(promise: object, over: object = None, device: object = None) -> None:
    """The arguments of the marker."""


def promised(
    test: str, parameters: Mapping[str, object], args: Sequence[object], kwargs: Mapping[str, Any]
) -> PromisedSize:
    """The promise of a marker for the size of one test, whose other sizes are not known yet.

    Raises:
        TypeError: for wrong arguments of the marker.
        ValueError: for a wrong promise, and if it is not clear which parameter is the size.
    """
    given = inspect.signature(memory_scaling).bind(*args, **kwargs).arguments
    promise = Promise.parse(given["promise"])
    over = given.get("over") or _only_size(promise, parameters)
    size = parameters.get(over)
    if type(size) is not int or size < 1:
        raise ValueError(f"over={over!r} must be a parameter with whole numbers from 1")
    unknown = sorted(promise.factors.keys() - {over})
    if unknown:
        raise ValueError(f"{promise.text} names {', '.join(unknown)}, but the parameter is {over}")
    others = tuple(sorted((name, _identified(value)) for name, value in parameters.items() if name != over))
    device = given.get("device")
    return PromisedSize(test, others, str(over), size, (), promise.text, device and str(device))


def with_all_sizes(found: Iterable[PromisedSize]) -> list[PromisedSize]:
    """Promises with all sizes that the tests of one function and of equal other parameters have."""
    found = [*found]
    sizes: dict[object, set[int]] = {}
    for one in found:
        sizes.setdefault((one.test, one.others), set()).add(one.size)
    return [one._replace(sizes=tuple(sorted(sizes[one.test, one.others]))) for one in found]


def _only_size(promise: Promise, parameters: Mapping[str, object]) -> str:
    named = [name for name in promise.factors if name in parameters]
    sizes = named or [name for name, value in parameters.items() if type(value) is int]
    if len(sizes) != 1:
        found = ", ".join(sizes) or "none"
        raise ValueError(f"the parameter is not clear ({found}): write over=")
    return sizes[0]


def _identified(value: object) -> str:
    """A text that identifies a parameter; not the ``repr`` of an object that is not plain, which may read a card."""
    return repr(value) if is_plain(value) else f"object {id(value)}"
