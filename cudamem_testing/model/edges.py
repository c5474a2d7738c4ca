"""One reference between two objects, and one tensor that is a view, as text.

Apart from the chains of them (``references``), because every run needs these, and few find a chain.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

_QUOTED = re.compile(r"(['\"])(.*)\1")


class Kind(str, Enum):
    """The kind of an edge. The value is the word in tables and graphs."""

    GLOBAL = "global"
    ATTRIBUTE = "attribute"
    SUBMODULE = "submodule"
    ITEM = "item"
    KEY = "key"
    ELEMENT = "element"
    CLOSURE = "closure"
    LOCAL = "local"
    STACK = "frame"
    CALL = "call"
    CACHED = "cached"
    CALLBACK = "callback"
    HOOK = "hook"
    GRAD = "grad"
    GRAD_FN = "grad_fn"
    NEXT = "next"
    SAVED = "saved"
    STORAGE = "storage"
    INTERNAL = "internal"
    CLASS = "class"
    ROOT = "root"
    OTHER = "other"

    def __str__(self) -> str:
        return self.value


#: An edge before it becomes text: its kind, the varying part of the label, and the referent.
Edge = tuple[Kind, object, object]


class Reference(NamedTuple):
    """One labelled edge: its kind and its text after the holder (``.attr``, ``['key']``, ``local 'x'``)."""

    kind: Kind
    text: str

    @property
    def name(self) -> str:
        """The name in the label: ``x`` of ``.x``, ``['x']``, ``.__dict__['x']`` and ``local 'x'``."""
        quoted = _QUOTED.search(self.text)
        text = self.text.lstrip(".") if quoted is None else quoted[2]
        return text.strip("[]") if text[:1] == "[" else text

    def __str__(self) -> str:
        return self.text


class View(NamedTuple):
    """A tensor that is a view of a part of its storage: its description, and the shape of the whole."""

    name: str
    whole: tuple[int, ...]
