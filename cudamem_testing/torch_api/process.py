"""Whether torch is there, and which one. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import sys
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def imported() -> bool:
    """Whether this process has imported torch (wholly: a test may be importing it right now)."""
    module = sys.modules.get("torch")
    return module is not None and hasattr(module, "cuda") and hasattr(module, "_C")


@cache
def version() -> str | None:
    """The installed torch's version, from its metadata, which is long to read; torch is not imported."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def bindings() -> ModuleType:
    """``torch._C``, whose functions every spelling of the Python API looks up at each call."""
    import torch

    return torch._C
