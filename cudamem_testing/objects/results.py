"""References of torch's results with several outputs (``torch.return_types.max``), which the collector does not track.

C code creates them outside the collector's lists, so that nothing seems to hold their tensors.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from cudamem_testing import safe_access


def result_classes() -> frozenset[type]:
    """The classes of ``torch.return_types``."""
    namespace = safe_access.instance_dict(torch.return_types) or {}
    return frozenset(
        cls for cls in namespace.values() if safe_access.is_a(cls, type) and safe_access.derives(cls, tuple)
    )


def edges(objects: Iterable[object]) -> Iterator[tuple[object, object]]:
    """Pairs (holder, referent) for the results among some objects."""
    kinds = {id(cls) for cls in result_classes()}
    for obj in objects:
        if id(type(obj)) in kinds:
            for element in safe_access.referents(obj):
                yield obj, element
