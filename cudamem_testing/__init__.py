"""Memory tests for PyTorch: what a test allocates, what it keeps, and who holds it.

The pytest plugin needs no import. These names are for use in tests' helpers and outside pytest; each is imported when
it is first asked for, so that importing the package imports neither torch nor pytest. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.growth import Grew, Growth
    from cudamem_testing.model.limits import LimitError
    from cudamem_testing.model.sizes import format_size, parse_size
    from cudamem_testing.model.windows import Window
    from cudamem_testing.windows.memory import Memory, OverBudget

__version__ = "0.1.0"
__all__ = ["Device", "Grew", "Growth", "LimitError", "Memory", "OverBudget", "Window", "format_size", "parse_size"]

_HOMES = {
    "Device": "model.devices",
    "Grew": "model.growth",
    "Growth": "model.growth",
    "LimitError": "model.limits",
    "Memory": "windows.memory",
    "OverBudget": "windows.memory",
    "Window": "model.windows",
    "format_size": "model.sizes",
    "parse_size": "model.sizes",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
