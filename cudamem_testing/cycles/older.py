"""What goes with garbage though the collector did not look at it: objects of older generations that it alone holds.

A tensor is often older than the cycle that comes to hold it. A collection of the young objects finds the cycle and
not the tensor, which goes with it all the same: nobody else refers to it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Sequence

from cudamem_testing import static


def held_by(garbage: Sequence[object]) -> list[object]:
    """Objects outside of garbage to which nothing refers but garbage and other such objects.

    As the collector does it: an object goes if all that is counted as a reference to it comes from what goes. Objects
    that the collector does not track (numbers, texts) are left out, and cycles of older objects, which stay until it
    looks at them.
    """
    inside = set(map(id, garbage))
    references: Counter[int] = Counter()
    found: list[object] = []
    latest: Sequence[object] = garbage
    while latest:
        outside = [obj for obj in static.referents(*latest) if id(obj) not in inside and gc.is_tracked(obj)]
        references.update(map(id, outside))
        unique = dict(zip(map(id, outside), outside, strict=True))
        # One list is all that holds them here, and an object of its own tells how much that and the asking count for.
        held = [object(), *unique.values()]
        del outside, unique
        ours, *counts = map(sys.getrefcount, held)
        latest = [obj for obj, count in zip(held[1:], counts, strict=True) if count - ours == references[id(obj)]]
        inside.update(map(id, latest))
        found += latest
    return found
