"""Lines of recorded files, each a JSON object of its own: what is wrong with one, in words. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

CONFLICT = ("<<<<<<<", "=======", ">>>>>>>", "|||||||")
"""How lines begin that a merge has left for people."""


def json_of(text: str) -> object:
    """The value of a line.

    Raises:
        ValueError: saying what is wrong; an object with a key twice is.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("has a key twice")
    return data


def check_keys(data: Iterable[str], required: Collection[str], optional: Collection[str] = ()) -> None:
    """Refuse an object with a key too many or too few.

    Raises:
        ValueError: naming the first one.
    """
    given = [*data]
    unknown = [key for key in given if key not in required and key not in optional]
    missing = [key for key in required if key not in given]
    if unknown or missing:
        raise ValueError(f"has the unknown key {unknown[0]!r}" if unknown else f"has no {missing[0]!r}")


def text_of(name: str, value: object) -> str:
    """A value that must be text.

    Raises:
        ValueError: when it is not.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value
