"""Object graphs as diagrams.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from cudamem_testing import safe_access
from cudamem_testing.model.edges import Kind
from cudamem_testing.objects.names import name_of
from cudamem_testing.objects.references import references
from cudamem_testing.objects.tensors import is_tensor
from cudamem_testing.show.diagrams import Arrow, Box, Diagram

#: Objects that one diagram shows.
MOST_BOXES = 150
LEGEND = (("cycle", "in the cycle"), ("tensor", "tensor"))
_TABLES = frozenset({"._parameters", "._buffers", "._modules"})


def annotated_references(obj: object) -> dict[int, list[str]]:
    """The labels of all references that an object holds, by the ``id()`` of what they lead to.

    The labels are the words of source code (``.attr``, ``['key']``, ``.__closure__[0] 'x'``). No code of the object
    runs. The ids are good as long as the objects live.
    """
    found: dict[int, list[str]] = {}
    for reference, referent in references(obj):
        found.setdefault(id(referent), []).append(reference.text)
    return found


def object_graph(
    objects: Iterable[object],
    context: Callable[[object], str | None] | None = None,
    filter: Callable[[object], bool] | None = None,  # noqa: A002 - the name that people know from torch
) -> Diagram:
    """The references among some objects, as a diagram that shows itself as DOT and HTML.

    Args:
        objects: the boxes.
        context: what a click on an object's box shows, such as where it was allocated.
        filter: which objects matter; only they and what leads to them are shown. By default, tensors if there are
            any, else everything.
    """
    found = [*objects]
    place = dict(zip(map(id, found), range(len(found)), strict=True))
    held: list[dict[int, str]] = [{} for _ in found]
    holders: list[list[int]] = [[] for _ in found]
    for number, obj in enumerate(found):
        for reference, referent in references(obj):
            target = place.get(id(referent))
            if target is not None and target not in held[number]:
                held[number][target] = reference.text
                holders[target].append(number)
    matters = [number for number, obj in enumerate(found) if (filter or is_tensor)(obj)]
    if not matters and filter is None:
        matters = [*range(len(found))]
    keep = set(matters)
    waiting = deque(matters)
    while waiting:
        for holder in holders[waiting.popleft()]:
            if holder not in keep:
                keep.add(holder)
                waiting.append(holder)
    shown = sorted(keep)
    new = {old: number for number, old in enumerate(shown)}
    marked = set(matters) if filter is not None else {old for old in shown if is_tensor(found[old])}
    boxes = tuple(_box(found[old], "tensor" if old in marked else "", context) for old in shown)
    arrows = tuple(
        Arrow(new[old], new[target], text) for old in shown for target, text in held[old].items() if target in new
    )
    left = len(found) - len(shown)
    return Diagram(
        boxes,
        arrows,
        "Object graph",
        (f"{left} objects that lead to none of these are left out",) * bool(left),
        LEGEND[1:],
    )


def cycle_diagram(
    cycle: Sequence[object],
    important: Sequence[object],
    inside: Callable[[object], bool],
    context: Callable[[object], str | None],
    total: int,
    title: str,
) -> Diagram:
    """A cycle and what hangs on it, nearest first; inner objects of the interpreter are part of labels.

    ``important`` objects (the largest tensors and what leads to them) are always shown. ``inside`` says which objects
    may be shown, ``total`` how many there are.
    """
    places: dict[int, int] = {}
    shown: list[object] = []
    arrows: dict[tuple[int, int], str] = {}

    def show(obj: object) -> int:
        if id(obj) not in places:
            places[id(obj)] = len(shown)
            shown.append(obj)
        return places[id(obj)]

    for obj in (*cycle, *important):
        show(obj)
    on_cycle = len({id(obj) for obj in cycle})
    waiting = deque(shown)
    while waiting:
        holder = waiting.popleft()
        for text, referent in _plain_references(holder):
            if id(referent) not in places:
                if len(shown) >= MOST_BOXES or not inside(referent):
                    continue
                waiting.append(referent)
            arrows.setdefault((places[id(holder)], show(referent)), text)
    boxes = tuple(
        _box(obj, "tensor" if is_tensor(obj) else "cycle" if place < on_cycle else "", context)
        for place, obj in enumerate(shown)
    )
    left = total - len(shown)
    notes: tuple[str, ...] = ("Shown is what leads to tensors, without the interpreter's inner objects.",)
    if len(shown) >= MOST_BOXES and left > 0:
        notes = (f"Shown are the {len(shown)} objects nearest to the cycle; {left} more are left out.", *notes)
    lines = tuple(
        Arrow(source, target, text, source < on_cycle and target < on_cycle)
        for (source, target), text in arrows.items()
    )
    return Diagram(boxes, lines, title, notes, LEGEND)


def _plain_references(obj: object) -> Iterator[tuple[str, object]]:
    """References in the words of source code, without the interpreter's inner objects."""
    for reference, referent in references(obj):
        if reference.kind in (Kind.INTERNAL, Kind.CLASS, Kind.KEY):
            continue
        if reference.text in _TABLES or (reference.kind is Kind.CLOSURE and type(referent) is types.CellType):
            continue
        yield reference.text, referent


def _box(obj: object, kind: str, context: Callable[[object], str | None] | None) -> Box:
    more = None if context is None else context(obj)
    cls = type(obj)
    where = f"{safe_access.class_module(cls)}.{safe_access.class_qualname(cls)}"
    return Box(name_of(obj), kind, where if more is None else f"{where}\n{more}")
