"""What a report shows of a captured graph: its nodes, its pool, its replays. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from cudamem_testing.graphs.captured import Captured
from cudamem_testing.graphs.nodes import NodeList
from cudamem_testing.model.sizes import count
from cudamem_testing.objects.names import name_of
from cudamem_testing.safe_access import error_text

MOST = 40
"""Lines of nodes that are shown."""


def describe(captured: Captured) -> str:
    """Everything that is known of a graph, a part that cannot be read with the reason.

    The test has failed, perhaps with an error of the card: no part hides another one.
    """
    lines = [str(captured), count(captured.replays, "replay")]
    if not captured.live:
        return "\n".join((*lines, "the graph was reset: its nodes and its pool are gone"))
    parts = (("nodes", _nodes), ("pool", _pool), ("outputs", _outputs), ("used from outside", _outside))
    for title, make in parts:
        lines += _part(title, captured, make)
    if captured.lint is not None:
        lines += ["lint:", *(f"   {line}" for line in str(captured.lint).splitlines())]
    return "\n".join(lines)


def _part(title: str, captured: Captured, make: Callable[[Captured], Iterable[str]]) -> list[str]:
    try:
        return [f"{title}:", *(f"   {line}" for line in make(captured))]
    except Exception as error:
        return [f"{title}: unknown: {error_text(error)}"]


def _nodes(captured: Captured) -> Iterator[str]:
    found = captured.nodes()
    kinds = dict.fromkeys(node.kind for node in found.nodes)
    yield ", ".join(f"{found.count(kind)} {kind}" for kind in kinds) or "none"
    lines = _lines(found) if found.nodes else []
    yield from lines[:MOST]
    if len(lines) > MOST:
        yield f"... {count(len(lines) - MOST, 'more line')}"


def _lines(found: NodeList) -> list[str]:
    """By operator where that was recorded, else by the kernels' names."""
    return found.text("kernels" if found.without_operators else "operators").splitlines()


def _pool(captured: Captured) -> Iterator[str]:
    yield str(captured.pools().of(captured.pool))


def _outputs(captured: Captured) -> Iterator[str]:
    yield from (f"{name} {name_of(tensor)}" for name, tensor in captured.output_tensors())


def _outside(captured: Captured) -> Iterator[str]:
    """The storages that the graph uses and did not make; of freed ones, which come first, where that was."""
    for read in sorted(captured.reads(), key=lambda read: not read.dead):
        lines = str(read).splitlines()
        yield from lines if read.dead else lines[:1]
