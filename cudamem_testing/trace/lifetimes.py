"""The data flow as lifetimes: a bar for each tensor over the operators that handle it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterator

from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Locator
from cudamem_testing.show.lifetimes import Bar, Lifetimes, OperatorStep
from cudamem_testing.trace.categories import UNKNOWN, Categories
from cudamem_testing.trace.draw import Labels, detail_of
from cudamem_testing.trace.flow import Node
from cudamem_testing.trace.graph import short_name
from cudamem_testing.trace.records import ScopeKind, Storage

#: The most tensors on one page, the largest first, and the most operators that a click names.
MOST, NAMED = 5000, 8
BACKWARD_PASS = "backward pass"


def lifetimes(found: Categories, locator: Locator) -> Lifetimes:
    """The lifetimes of a data flow, coloured by the last category of each tensor."""
    flow = found.flow
    uses: dict[Storage, list[int]] = {}
    for node in flow.nodes:
        for use in node.uses:
            uses.setdefault(use.storage, []).append(node.index)
    every = [storage for storage in uses if storage.nbytes]
    shown = sorted(every, key=lambda storage: (-storage.nbytes, uses[storage]))[:MOST]
    kept = {*shown}
    labels = Labels(flow, "first-use")
    bars = [_bar(storage, found, uses[storage], labels) for storage in uses if storage in kept]
    steps = [
        OperatorStep(
            short_name(node.name),
            _calls(node),
            node.scope.backward,
            "\n".join(detail_of(node, flow, labels, locator)),
        )
        for node in flow.nodes
    ]
    notes = list(flow.notes)
    if len(every) > len(shown):
        size = format_size(max(storage.nbytes for storage in every if storage not in kept))
        notes.insert(0, f"{count(len(every) - len(shown), 'tensor')} of at most {size} left out")
    return Lifetimes(tuple(bars), tuple(steps), "Data flow: lifetimes of tensors", tuple(notes))


def _calls(node: Node) -> tuple[tuple[str, int], ...]:
    """The calls of modules around an operator, by the event of each; in a backward pass they are unknown."""
    calls = [(one.name, one.event) for one in node.scope.chain() if one.kind is ScopeKind.MODULE]
    return tuple(calls[::-1]) if calls or not node.scope.backward else ((BACKWARD_PASS, -1),)


def _bar(storage: Storage, found: Categories, taken: list[int], labels: Labels) -> Bar:
    flow = found.flow
    nodes = [flow.nodes[place] for place in taken]
    of_it = [next(use for use in node.uses if use.storage is storage) for node in nodes]
    made = nodes[0] if of_it[0].before is None else None
    freed = next((node for node, use in zip(nodes, of_it, strict=True) if use.after is None), None)
    category = found.of(storage, found.last_version(storage)) if not of_it[0].is_intermediate else None
    name = labels.names.get(storage)
    label = labels.label(storage)
    lines = _lines(made, freed, [node for node in nodes if node is not made and node is not freed])
    return Bar(
        label if name is None else f"{name} ({label})",
        storage.nbytes,
        storage.device,
        -1 if made is None else made.index,
        len(flow.nodes) if freed is None else max(freed.index, taken[0] + 1 if freed is made else freed.index),
        UNKNOWN if category is None else category.name,
        "\n".join(lines),
        tuple(taken),
    )


def _lines(made: Node | None, freed: Node | None, takers: list[Node]) -> Iterator[str]:
    yield "existed before the recording" if made is None else f"made by {short_name(made.name)}"
    names = [short_name(node.name) for node in takers]
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield f"taken by {', '.join(names[:NAMED])}{more}"
    if freed is not None:
        yield "lives only inside it" if freed is made else f"freed in {short_name(freed.name)}"
    else:
        yield "not freed in the recording"
