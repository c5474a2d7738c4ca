"""Whether torch is imported, and which version is installed. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    import torch as torch
else:

    class _Torch:
        """The module of that name, imported when one of its names is read.

        Modules that load before a test imports torch have it from here at their head: their functions are called when
        torch is there, or when importing it is what they are asked for.
        """

        def __getattr__(self, name: str) -> Any:
            import torch

            return getattr(torch, name)

    torch = _Torch()

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


def load() -> None:
    """Import torch, unless that is done."""
    bindings()


def bindings() -> ModuleType:
    """``torch._C``, whose functions every spelling of the Python API looks up at each call."""
    return torch._C
