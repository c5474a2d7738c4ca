"""The data flow as a diagram: operators are boxes, the versions that one leaves and another takes are arrows.

Tensors that existed before, and named ones that nothing reads in the end, are separate boxes; allocations and frees
outside of operators are left out. A large graph is cut: to the operators that handle the largest tensors, or to those
nearest to one tensor. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Locator
from cudamem_testing.show.diagrams import Arrow, Box, Diagram
from cudamem_testing.trace.flow import MEMORY, Node
from cudamem_testing.trace.graph import DataFlow, Ids, short_name
from cudamem_testing.trace.records import ScopeKind, Storage

#: The most operators of one diagram, and of one around one tensor.
MOST_OPERATORS, MOST_AROUND = 100, 40
TENSOR, BACKWARD = "tensor", "backward"
LEGEND = (("", "operator"), (BACKWARD, "of the backward pass"), (TENSOR, "tensor"))


def draw(flow: DataFlow, locator: Locator, *, around: str | None = None, ids: Ids = "first-use") -> Diagram:
    """The diagram of a data flow.

    Args:
        flow: the graph.
        locator: shortens the files that a click on an operator shows.
        around: a tensor as ``T3`` or by its name: only operators near to it are shown, and its arrows are marked.
        ids: how tensors are numbered.

    Raises:
        KeyError: when no tensor has that name.
        ValueError: for an unknown kind of numbers.
    """
    every = [node for node in flow.nodes if node.name != MEMORY and node.uses]
    centre = None if around is None else flow.storage(around, ids)
    operators = _heaviest(every) if centre is None else _nearest(every, centre)
    left = len(every) - len(operators)
    notes = flow.notes
    if left:
        which = f"nearest to {around}" if around else 'of the largest tensors; around="T3" shows those nearest to one'
        notes = (f"{count(left, 'operator')} left out: shown are those {which}.", *notes)
    return _diagram(flow, operators, Labels(flow, ids), locator, notes, centre)


def _heaviest(operators: Sequence[Node]) -> list[Node]:
    """The operators whose largest tensor is largest, in their order."""
    weights = [max(use.storage.nbytes for use in node.uses) for node in operators]
    places = sorted(range(len(operators)), key=lambda place: (-weights[place], place))[:MOST_OPERATORS]
    return [operators[place] for place in sorted(places)]


def _nearest(operators: Sequence[Node], start: Storage) -> list[Node]:
    """The operators with the fewest tensors between them and one tensor, in their order; breadth first."""
    users: dict[Storage, list[int]] = {}
    for place, node in enumerate(operators):
        for use in node.uses:
            users.setdefault(use.storage, []).append(place)
    found: set[int] = set()
    seen, waiting = {start}, deque([start])
    while waiting and len(found) < MOST_AROUND:
        for place in users.get(waiting.popleft(), ()):
            if len(found) == MOST_AROUND:
                break
            found.add(place)
            fresh = [use.storage for use in operators[place].uses if use.storage not in seen]
            seen.update(fresh)
            waiting.extend(fresh)
    return [operators[place] for place in sorted(found)]


class Labels:
    """The names of tensors in one diagram."""

    def __init__(self, flow: DataFlow, ids: Ids) -> None:
        self._numbers = flow.numbers(ids)
        self.names = {name.storage: name.text for name in reversed(flow.names) if name.storage is not None}

    def label(self, storage: Storage) -> str:
        """As ``T3``."""
        return f"T{self._numbers[storage]}"

    def version(self, storage: Storage, version: int | None) -> str:
        return f"T{self._numbers[storage]}(v{version})"

    def box(self, storage: Storage) -> Box:
        name = self.names.get(storage)
        label = self.label(storage)
        size = f"{format_size(storage.nbytes)} on {storage.device}"
        return Box(label if name is None else f"{name}\n{label}", TENSOR, size)


def _diagram(
    flow: DataFlow,
    operators: Sequence[Node],
    labels: Labels,
    locator: Locator,
    notes: tuple[str, ...],
    centre: Storage | None,
) -> Diagram:
    boxes = [
        Box(
            short_name(node.name),
            BACKWARD if node.scope.backward else "",
            "\n".join(detail_of(node, flow, labels, locator)),
        )
        for node in operators
    ]
    place = {node.index: number for number, node in enumerate(operators)}
    tensors: dict[Storage, int] = {}
    arrows: dict[tuple[int, int], list[str]] = {}
    marked: set[tuple[int, int]] = set()

    def tensor(storage: Storage) -> int:
        if storage not in tensors:
            tensors[storage] = len(boxes)
            boxes.append(labels.box(storage))
        return tensors[storage]

    taken = set()
    for edge in flow.edges:
        if edge.target not in place:
            continue
        taken.add((edge.storage, edge.version))
        source = tensor(edge.storage) if edge.source is None else place.get(edge.source)
        if source is not None:
            pair = source, place[edge.target]
            arrows.setdefault(pair, []).append(labels.version(edge.storage, edge.version))
            marked.update([pair] if edge.storage is centre else [])
    last = {use.storage: (node.index, use.after) for node in operators for use in node.outputs}
    for storage in labels.names:
        if storage in last and (storage, last[storage][1]) not in taken:
            author, version = last[storage]
            boxes.append(labels.box(storage))
            pair = place[author], len(boxes) - 1
            arrows[pair] = [labels.version(storage, version)]
            marked.update([pair] if storage is centre else [])
    return Diagram(
        tuple(boxes),
        tuple(Arrow(*pair, ", ".join(texts), pair in marked) for pair, texts in arrows.items()),
        "Data flow",
        notes,
        LEGEND,
        _layers(len(operators), len(boxes), arrows),
    )


def _layers(operators: int, boxes: int, arrows: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Rows for boxes: operators, which come first and in order, below what leads to them; tensors next to them."""
    sources: dict[int, list[int]] = {}
    targets: dict[int, list[int]] = {}
    for source, target in arrows:
        sources.setdefault(target, []).append(source)
        targets.setdefault(source, []).append(target)
    layers: list[int] = []
    for box in range(operators):
        layers.append(1 + max((layers[one] for one in sources.get(box, ()) if one < operators), default=0))
    for box in range(operators, boxes):
        made = [layers[one] + 1 for one in sources.get(box, ())]
        layers.append(max(made, default=min((layers[one] - 1 for one in targets.get(box, ())), default=0)))
    return tuple(layers)


def detail_of(node: Node, flow: DataFlow, labels: Labels, locator: Locator) -> Iterator[str]:
    """Details of an operator: its place, its module, and what it takes and leaves."""
    stack = locator.stack(flow.trace.stack(node.event))
    if stack.frames:
        yield f"called in {stack.line}" + (f"  {stack.library}" if stack.library else "")
    for kind, names in (("region", flow.regions(node)), ("module", node.scope.path(ScopeKind.MODULE))):
        if names:
            yield f"{kind} {' / '.join(names)}"
    for use in node.uses:
        if use.is_intermediate:
            continue
        what = "makes" if use.before is None else "frees" if use.is_freed else "writes" if use.is_written else "reads"
        version = use.before if use.before is not None else use.after
        name = labels.names.get(use.storage)
        size = f"{format_size(use.storage.nbytes)} on {use.storage.device}"
        yield f"{what} {labels.version(use.storage, version)}{'' if name is None else f' {name}'}: {size}"
    if node.intermediates:
        size = format_size(sum(storage.nbytes for storage in node.intermediates))
        yield f"{size} in {count(len(node.intermediates), 'tensor')} inside alone"
