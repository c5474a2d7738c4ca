"""The graph of Python objects: labelled references, safe names, and what holds what.

``references`` and ``name_of`` look at one object without running its code, ``storages_of`` says which memory a tensor
keeps, ``find_holders`` finds the shortest chain from a root (a module, a frame, a class, a thread) to memory that
is still alive. Results are text: they keep no object alive.

What searches the heap is imported on first use: inside a collection there is time for the rest alone.
PYTEST_DONT_REWRITE
"""

from importlib import import_module
from typing import TYPE_CHECKING

from cudamem_testing.model.references import Kind, Path, Reach, Reference, RootKind, Step
from cudamem_testing.objects.names import key_text, name_of, type_word
from cudamem_testing.objects.references import references
from cudamem_testing.objects.tensors import (
    Storage,
    carried_by,
    holds_memory,
    is_module,
    is_tensor,
    storage_of,
    storages_of,
)

if TYPE_CHECKING:
    from cudamem_testing.objects.places import KnownPlaces
    from cudamem_testing.objects.roots import HARNESS_PACKAGES, Ignore
    from cudamem_testing.objects.search import HolderResult, find_holders, find_object_holders

__all__ = [
    "HARNESS_PACKAGES",
    "HolderResult",
    "Ignore",
    "Kind",
    "KnownPlaces",
    "Path",
    "Reach",
    "Reference",
    "RootKind",
    "Step",
    "Storage",
    "carried_by",
    "find_holders",
    "find_object_holders",
    "holds_memory",
    "is_module",
    "is_tensor",
    "key_text",
    "name_of",
    "references",
    "storage_of",
    "storages_of",
    "type_word",
]

_HOMES = {
    "HARNESS_PACKAGES": "roots",
    "HolderResult": "search",
    "Ignore": "roots",
    "KnownPlaces": "places",
    "find_holders": "search",
    "find_object_holders": "search",
}


def __getattr__(name: str) -> object:
    """Import a name from its module."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
