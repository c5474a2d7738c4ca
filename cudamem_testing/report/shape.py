"""The shape of a report: what a JSON document from outside must look like before it is read.

A shape is a function that takes a value and its place, such as ``tests[3].windows[0].start``, and raises ``ValueError``
with that place when the value is of another type. Keys that no shape names are welcome. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cudamem_testing.model.changes import TRACKED
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Kind, Severity, Standing, Verdict
from cudamem_testing.static import type_name

Shape = Callable[[object, str], None]
_MOST = 2**63
_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a fraction",
    type(None): "null",
}


def of(*types: type) -> Shape:
    """A value of exactly one of these types."""
    wanted = " or ".join(_NAMES[kind] for kind in types)

    def check(value: object, place: str) -> None:
        if type(value) not in types:
            raise ValueError(f"{place} is {_NAMES.get(type(value), type_name(value))}, not {wanted}")
        if type(value) is int and not -_MOST <= value < _MOST:
            raise ValueError(f"{place} is a number of more than 64 bits")

    return check


def parsed(parse: Callable[[str], object], *, nullable: bool = False) -> Shape:
    """Text that a function accepts."""
    text = of(str, type(None)) if nullable else of(str)

    def check(value: object, place: str) -> None:
        text(value, place)
        if isinstance(value, str):
            try:
                parse(value)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None

    return check


def one_of(*words: str) -> Shape:
    """One of these texts."""

    def check(value: object, place: str) -> None:
        if value not in words:
            raise ValueError(f"{place} is {value!r}, not one of {', '.join(words)}")

    return check


def every(shape: Shape) -> Shape:
    """A list whose values have one shape."""
    listed = of(list)

    def check(value: object, place: str) -> None:
        listed(value, place)
        if isinstance(value, list):
            for number, part in enumerate(value):
                shape(part, f"{place}[{number}]")

    return check


def fields(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    """An object with these keys; optional ones may be missing."""
    anything, shapes = of(dict), {**required, **(optional or {})}

    def check(value: object, place: str) -> None:
        anything(value, place or "the document")
        if isinstance(value, dict):
            for key, shape in shapes.items():
                where = f"{place}.{key}" if place else key
                if key in value:
                    shape(value[key], where)
                elif key in required:
                    raise ValueError(f"{where} is missing")

    return check


def _counts(value: object, place: str) -> None:
    of(dict)(value, place)
    if isinstance(value, dict):
        for key, number in value.items():
            WHOLE(number, f"{place}.{key}")


def _spreads(value: object, place: str) -> None:
    of(dict)(value, place)
    if isinstance(value, dict):
        for key, ends in value.items():
            _METRIC(key, f"{place} key")
            every(WHOLE)(ends, f"{place}.{key}")
            if len(ends) != 2 or ends[0] > ends[1]:
                raise ValueError(f"{place}.{key} is not [lowest, highest]")


def _top(value: object, place: str) -> None:
    if value is not None:
        every(_place)(value, place)


def _place(value: object, place: str) -> None:
    of(list)(value, place)
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{place} is not [name, bytes]")
    TEXT(value[0], f"{place}[0]")
    WHOLE(value[1], f"{place}[1]")


def _texts_by_device(value: object, place: str) -> None:
    of(str, dict, type(None))(value, place)
    if isinstance(value, dict):
        for key, text in value.items():
            TEXT(text, f"{place}.{key}")


def _span(value: object, place: str) -> None:
    if value is not None:
        every(WHOLE)(value, place)
        if not isinstance(value, list) or len(value) != 4:
            raise ValueError(f"{place} is not [line, column, last line, last column]")


def _place_or_null(value: object, place: str) -> None:
    WHOLE_OR_NULL(value, place)
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{place} is {value}, less than 0")


def _call(value: object, place: str) -> None:
    if value is not None:
        _CALL(value, place)


TEXT, WHOLE, FLAG = of(str), of(int), of(bool)
TEXT_OR_NULL, WHOLE_OR_NULL = of(str, type(None)), of(int, type(None))
TEXTS = every(TEXT)
_METRIC = one_of(*TRACKED)

WINDOW = fields(
    {"name": TEXT, "device": parsed(Device.parse)},
    {
        **dict.fromkeys(("start", "peak", "end", "requested_start", "requested_peak"), WHOLE_OR_NULL),
        **dict.fromkeys(("reserved_start", "reserved_peak", "retained"), WHOLE_OR_NULL),
        **dict.fromkeys(("allocations", "segments", "retries", "blocks"), WHOLE_OR_NULL),
        "complete": FLAG,
        "notes": TEXTS,
    },
)
FINDING = fields(
    {"kind": parsed(Kind), "verdict": parsed(Verdict), "severity": parsed(Severity), "message": TEXT},
    {
        "bytes": WHOLE_OR_NULL,
        "device": parsed(Device.parse, nullable=True),
        **dict.fromkeys(("allocated", "holder", "cause"), TEXT_OR_NULL),
        "details": TEXTS,
        "standing": parsed(Standing, nullable=True),
    },
)
MEASURED = fields(
    {"device": parsed(Device.parse), "environment": TEXT, "values": _spreads},
    {"top": _top, "metrics": every(_METRIC), "asked": FLAG},
)
TEST = fields(
    {"nodeid": TEXT, "outcome": TEXT, "windows": every(WINDOW), "findings": every(FINDING)},
    {
        "attempt": WHOLE,
        "whole": every(WINDOW),
        "budget_used": of(int, float, type(None)),
        "notes": TEXTS,
        "measured": every(MEASURED),
        "unjudged": TEXTS,
    },
)
FIXTURE = fields({"name": TEXT, "scope": TEXT, "first_used_by": TEXT, "windows": every(WINDOW)})
LEDGER = fields({"device": parsed(Device.parse), "owner": TEXT, "bytes": WHOLE, "blocks": WHOLE})
_CALL = fields(
    {
        **dict.fromkeys(("function", "callee", "argument"), TEXT),
        **dict.fromkeys(("first_line", "line"), WHOLE),
        "position": _place_or_null,
        "span": _span,
    }
)
CHECKED = fields(
    {
        **dict.fromkeys(("test", "file"), TEXT),
        **dict.fromkeys(("device", "digest", "actual"), TEXT_OR_NULL),
        "call": _call,
        "expected": _texts_by_device,
    }
)
EXTENT = fields({}, dict.fromkeys(("paths", "left_out", "kinds"), TEXTS))
REPORT = fields(
    {
        "environment": fields({"devices": TEXTS, "torch": TEXT_OR_NULL, "allocator": TEXT_OR_NULL}),
        "tests": every(TEST),
        "run": fields(
            {"fixtures": every(FIXTURE), "findings": every(FINDING), "ledger": every(LEDGER), "notes": TEXTS},
            {
                "unenforced": _counts,
                "unchecked": _counts,
                "expected": every(CHECKED),
                "extent": EXTENT,
                "failures": TEXTS,
            },
        ),
    }
)
