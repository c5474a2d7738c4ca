"""Data flow by module: a row for each module and phase, with what its operators read, make and leave.

::

    module           phase     operators     reads     makes      kept
    model.ln_1       forward           1   8.5 KiB   8.3 KiB   8.3 KiB
    model.attn       forward           9  72.0 KiB  64.0 KiB  48.0 KiB

Bytes are of whole storages, each counted once in a row. ``kept`` is what was made there and is live when the phase
ends: after the forward pass, what autograd saved for the backward pass. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cudamem_testing.model.sizes import format_size
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.trace.flow import MEMORY, Node
from cudamem_testing.trace.graph import DataFlow
from cudamem_testing.trace.places import ENGINE, EventPlaces
from cudamem_testing.trace.records import Operator, Storage

FORWARD, BACKWARD, STEP = "forward", "backward", "optimizer"
OUTSIDE = "(no module)"
_OPTIMIZER = "Optimizer."


@dataclass(slots=True)
class _Part:
    """One module in one phase."""

    operators: int = 0
    last: int = 0
    reads: set[Storage] = field(default_factory=set)
    makes: set[Storage] = field(default_factory=set)


def render_modules(flow: DataFlow, *, min_bytes: int = 0, dtypes: bool = False) -> str:
    """The table. Rows in order of the first operator; those that neither read nor make ``min_bytes`` are left out.

    Args:
        flow: the data flow.
        min_bytes: the least sum of both, in bytes.
        dtypes: name the types of the elements of what is made.
    """
    places = EventPlaces(flow)
    parts: dict[tuple[str, str], _Part] = {}
    freed: dict[Storage, int] = {}
    phases: list[str] = []
    for node in flow.nodes:
        freed.update({use.storage: node.index for use in node.uses if use.is_freed})
        phase = _phase(node, flow) if node.name != MEMORY else phases[-1] if phases else FORWARD
        phases.append(phase)
        if not flow.makes_or_changes(node):
            continue
        part = parts.setdefault((places.modules(node.event) or OUTSIDE, phase), _Part())
        part.operators += 1
        part.last = node.index
        part.reads.update(use.storage for use in node.uses if use.is_input)
        part.makes.update(use.storage for use in node.uses if use.is_created)
    rows = []
    for (module, phase), part in parts.items():
        reads, makes = _bytes(part.reads), _bytes(part.makes)
        if reads + makes < max(min_bytes, 1):
            continue
        end = next((at for at in range(part.last, len(phases)) if phases[at] != phase), len(phases))
        kept = _bytes(one for one in part.makes if freed.get(one, end) >= end)
        types = (", ".join(sorted({one.dtype or "unknown" for one in part.makes})),) if dtypes else ()
        rows.append((module, phase, str(part.operators), *map(format_size, (reads, makes, kept)), *types))
    columns = (
        *(Column("module"), Column("phase"), Column("operators", "right")),
        *(Column(name, "right") for name in ("reads", "makes", "kept")),
        *((Column("types"),) if dtypes else ()),
    )
    return "\n".join(Table(columns, tuple(rows)).lines())


def _phase(node: Node, flow: DataFlow) -> str:
    around = (flow.trace.events[place] for place in flow.trace.ancestors(node.event))
    if node.scope.backward or any(isinstance(one, Operator) and one.name.startswith(ENGINE) for one in around):
        return BACKWARD
    return STEP if any(name.startswith(_OPTIMIZER) for name in flow.regions(node)) else FORWARD


def _bytes(storages: Iterable[Storage]) -> int:
    return sum(one.nbytes for one in storages)
