"""References of torch's results with several outputs (``torch.return_types.max``), which the collector does not track.

C code creates them outside the collector's lists, so that nothing seems to hold their tensors.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from cudamem_testing import safe_access

if TYPE_CHECKING:
    from cudamem_testing.objects.index import Referrers


def result_classes() -> frozenset[type]:
    """The classes of ``torch.return_types``."""
    namespace = safe_access.instance_dict(torch.return_types) or {}
    return frozenset(
        cls for cls in namespace.values() if safe_access.is_a(cls, type) and safe_access.derives(cls, tuple)
    )


def edges(referrers: Referrers, values: Iterable[object]) -> Iterator[tuple[object, object]]:
    """Pairs (holder, referent) with a result on one side; ``values`` are objects held outside the heap."""
    kinds = {id(cls) for cls in result_classes()}
    found = [value for value in values if id(type(value)) in kinds]
    for holder, result in referrers.untracked(kinds):
        yield holder, result
        found.append(result)
    for result in found:
        for element in safe_access.referents(result):
            yield result, element
