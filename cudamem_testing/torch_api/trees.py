"""torch's pytrees of tuples, lists, dicts and registered classes. Importing this module imports torch.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree as pytree


def leaves(tree: object) -> list[Any]:
    """The leaves of a tree, in order."""
    return list(pytree.tree_leaves(tree))


def flatten(tree: object) -> tuple[list[tuple[str, Any]], Any]:
    """The leaves of a tree, each with its path (``[0]['mask']``), and what :func:`unflatten` needs to rebuild it."""
    found, spec = pytree.tree_flatten_with_path(tree)
    return [(pytree.keystr(path), leaf) for path, leaf in found], spec


def unflatten(leaves: list[Any], spec: Any) -> Any:
    """A tree with other leaves."""
    return pytree.tree_unflatten(leaves, spec)


def mapped(function: Callable[[Any], Any], tree: object) -> Any:
    """A tree with each leaf replaced by ``function(leaf)``."""
    return pytree.tree_map(function, tree)
