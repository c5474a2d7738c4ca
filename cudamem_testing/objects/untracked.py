"""References that the collector does not see: those of NumPy arrays, and of containers that hold nothing else.

The collector tracks no array, and no dictionary or tuple in which it cannot see anything, such as ``{"a": array}``.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, compress, filterfalse

from cudamem_testing import safe_access
from cudamem_testing.objects import arrays

#: Objects that one call of C examines.
GROUP = 128
#: Ids of the classes of containers that the collector stops tracking.
_CONTAINERS = frozenset({id(dict), id(tuple)})


def groups(objects: list[object]) -> Iterator[list[object]]:
    """The objects, cut into lists of ``GROUP``."""
    return (objects[start : start + GROUP] for start in range(0, len(objects), GROUP))


def untracked(parts: Iterable[list[object]], kinds: Collection[int]) -> Iterator[tuple[object, object]]:
    """All pairs (holder, referent) on the way from some objects, over untracked containers, to untracked instances of
    exactly one of these classes, given by their ids.
    """
    wanted = frozenset(kinds)
    for part in parts:
        towards: set[int] = set()
        for level in reversed(_levels(part, wanted)):
            for group in groups(level):
                held = safe_access.referents(*group)
                if towards.isdisjoint(map(id, held)) and wanted.isdisjoint(map(id, map(type, held))):
                    continue
                for holder in group:
                    for referent in safe_access.referents(holder):
                        if id(referent) in towards or id(type(referent)) in wanted:
                            yield holder, referent
                            if level is not part:
                                towards.add(id(holder))


def _levels(group: list[object], wanted: frozenset[int]) -> list[list[object]]:
    """Some objects, the untracked containers that these hold, those that these hold, and so on.

    Empty if none of them holds an instance of a wanted class. Runs in C, because it examines the whole heap.
    """
    levels, found, seen = [group], False, set[int]()
    while levels[-1]:
        hidden = [*filterfalse(gc.is_tracked, safe_access.referents(*levels[-1]))]
        classes = [*map(id, map(type, hidden))]
        found = found or not wanted.isdisjoint(classes)
        below = [*compress(hidden, map(_CONTAINERS.__contains__, classes))]
        if len(levels) > 1:  # tuples that share others could otherwise double the number in each level
            below = [*{id(one): one for one in below if id(one) not in seen}.values()]
            seen.update(map(id, below))
        levels.append(below)
    return levels if found else []


def array_pairs(objects: Iterable[object]) -> Iterator[tuple[object, object]]:
    """Pairs (holder, referent) for the arrays among some objects, and for the arrays that these hold."""
    kind = arrays.array_class()
    if kind is None:
        return
    waiting = [obj for obj in objects if type(obj) is kind]
    seen: set[int] = set()
    while waiting:
        array = waiting.pop()
        if id(array) in seen:
            continue
        seen.add(id(array))
        held = [referent for _, _, referent in arrays.array_edges(array) if referent is not None]
        for holder, referent in chain(((array, one) for one in held), untracked([held], {id(kind)})):
            yield holder, referent
            if type(referent) is kind:
                waiting.append(referent)
