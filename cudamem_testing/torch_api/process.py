"""Whether torch is imported, and which version is installed. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_VERSION = re.compile(r"^Version:(.+)$", re.MULTILINE)


def imported() -> bool:
    """Whether this process has completely imported torch (a test may be importing it right now)."""
    module = sys.modules.get("torch")
    return module is not None and hasattr(module, "cuda") and hasattr(module, "_C")


@cache
def version() -> str | None:
    """The installed torch's version, from one line of its metadata; the rest, which is long, is not parsed.

    torch is not imported.
    """
    try:
        installed = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None
    line = _VERSION.search(installed.read_text("METADATA") or "")
    return installed.version if line is None else line[1].strip()


def bindings() -> ModuleType:
    """``torch._C``, whose functions every spelling of the Python API looks up at each call."""
    import torch

    return torch._C
