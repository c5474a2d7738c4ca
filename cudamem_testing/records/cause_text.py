"""The text of a cause in a line of known findings, as a pattern and as version 0.1.0 wrote it.

``*`` in a line matches any text, except in ``[*]``, which is a key or position of a container, as in causes.

Before causes had ``[*]`` for every key, a line had the keys themselves (``CACHE (dict)['layer*']``, ``[(3, 4)]``), and
a bare ``*`` for the number of a hook or a thread. Such lines are read as the current form.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from functools import lru_cache

from cudamem_testing.model.references import ANY_KEY, PASSING_NAME

_TEXT = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
#: What is a name, then a key: whole, or cut off in a long one.
_KEYS = re.compile(
    rf"(?P<name>\.(?:__dict__|_modules|_parameters|_buffers) \([^()]*\)\[{_TEXT}\])"
    rf"|\[(?:[^\[\]'\"]|{_TEXT}|\[[^\[\]]*\])*\]|\[.*?\.\.\.\]"
)
_KEY = re.compile(rf"(?<= key )(?:{_TEXT}|<[^>]*>|\[\*\]|\S+)")
_HOOK = re.compile(r"(?<= hook )\*")
_THREAD = re.compile(r"(?<=thread ')[^']*(?=')")
_MIDDLE = re.compile(r"\.\.\. \d+ more \.\.\.")
#: Kind, verdict, who allocated, who holds.
_PARTS = 4


@lru_cache(maxsize=4096)
def pattern_of(cause: str) -> re.Pattern[str] | None:
    """The pattern of a line's cause; ``None`` without a ``*``."""
    if "*" not in cause.replace(ANY_KEY, ""):
        return None
    parts = (".*".join(map(re.escape, part.split("*"))) for part in cause.split(ANY_KEY))
    return re.compile(re.escape(ANY_KEY).join(parts), re.DOTALL)


def current(cause: str) -> str:
    """A cause in its current form."""
    parts = cause.split(" | ", _PARTS - 1)
    if len(parts) < _PARTS or parts[0] != "leak":
        return cause
    holder = _KEYS.sub(lambda key: key["name"] or ANY_KEY, parts[-1])
    holder = _HOOK.sub(ANY_KEY, _KEY.sub(ANY_KEY, holder))
    holder = _THREAD.sub(lambda name: PASSING_NAME.sub(ANY_KEY, name.group().replace("-*", f"-{ANY_KEY}")), holder)
    return " | ".join((*parts[:-1], _MIDDLE.sub("...", holder)))
