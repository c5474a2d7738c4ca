"""Reference cycles that keep memory: caught by the collector, explained in words, drawn.

Memory in a cycle is freed only when Python's collector happens to run, so peaks become random. ``collect`` catches what
the collector finds, ``graph`` splits it into strongly connected components, ``explain`` says of each cycle how it
closes and what it keeps, ``words`` writes that down, ``source`` finds the line that closes it, ``draw`` draws it.

PYTEST_DONT_REWRITE
"""

from cudamem_testing.cycles.collect import (
    CycleWatch,
    ReferenceCycles,
    find_cycles,
    reference_cycles,
    warn_cycles,
    watch_cycles,
)
from cudamem_testing.cycles.draw import annotated_references, object_graph
from cudamem_testing.cycles.results import Cycle, KeptTensor

__all__ = [
    "Cycle",
    "CycleWatch",
    "KeptTensor",
    "ReferenceCycles",
    "annotated_references",
    "find_cycles",
    "object_graph",
    "reference_cycles",
    "warn_cycles",
    "watch_cycles",
]
