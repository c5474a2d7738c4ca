"""Parses and formats sizes and counts.

Everything in the package counts bytes as ``int``. Text is parsed once, here, exactly (no floats), and shown in
binary units. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re

from cudamem_testing.safe_access import type_name
from cudamem_testing.show.usage import hide_wrong_arguments

__tracebackhide__ = hide_wrong_arguments

UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"\s*(\d{1,30})(?:\.(\d{1,30}))?\s*([A-Za-z]*)\s*", re.ASCII)
_SHOWN = (bool, float, complex, bytes, type(None))  # their text is short and runs no user code
_HINT = "write bytes as an int, or a number with a unit: 512MiB, 1.5GiB (binary), 7GB (decimal)"


def parse_size(value: object) -> int:
    """Bytes of a size: an ``int``, or text such as ``"512MiB"``, ``"1.5 GiB"``, ``"7GB"``, ``"4096B"``, ``"0"``.

    ``KiB MiB GiB TiB`` are binary, ``kB MB GB TB`` decimal, in any letter case. A fraction of a byte is dropped. Text
    without a unit is refused, because ``"4"`` may mean 4 GB.

    Raises:
        ValueError: for anything else, with what is accepted; negative sizes and ``bool`` are refused.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"size {value} is negative: {_HINT}")
        return int(value)
    if not isinstance(value, str):
        shown = f"size {value!r}" if isinstance(value, _SHOWN) else "size"
        raise ValueError(f"{shown} is a {type_name(value)}: {_HINT}")
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError(f"size {value!r} is not understood: {_HINT}")
    whole, fraction, unit = match.groups(default="")
    if not unit and (int(whole) or fraction):
        raise ValueError(f"size {value!r} has no unit: {_HINT}")
    factor = UNITS.get(unit.upper() or "B")
    if factor is None:
        raise ValueError(f"size {value!r} has the unknown unit {unit!r}: {_HINT}")
    return int(whole + fraction) * factor // int("1" + "0" * len(fraction))


def format_size(size: int) -> str:
    """A size in bytes for people: ``612.4 MiB``, ``512 B``, ``-1.5 KiB``; one decimal above bytes."""
    sign, rest = ("-", -size) if size < 0 else ("", size)
    if rest < 1024:
        return f"{sign}{rest} B"
    for power, unit in ((1, "KiB"), (2, "MiB"), (3, "GiB"), (4, "TiB")):
        tenths = (rest * 20 + 1024**power) // (2 * 1024**power)  # round half up, in tenths
        if tenths < 10240 or unit == "TiB":
            break
    return f"{sign}{tenths // 10}.{tenths % 10} {unit}"


def count(number: int, noun: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def without_unit(size: str, other: str) -> str:
    """The number of a shown size alone, if ``other`` has the same unit: ``1.0`` beside ``2.5 MiB``."""
    number, _, unit = size.rpartition(" ")
    return number if unit.isalpha() and other.endswith(f" {unit}") else size


def from_to(low: str, high: str) -> str:
    """Two shown sizes as one text, with one unit if they have the same: ``1.0 to 2.5 MiB``."""
    return high if low == high else f"{without_unit(low, high)} to {high}"


def signed(size: int) -> str:
    """A change of a size: ``+1.5 KiB``, ``-512 B``."""
    return format_size(size) if size < 0 else f"+{format_size(size)}"
