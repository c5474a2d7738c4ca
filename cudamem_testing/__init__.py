"""Memory tests for PyTorch: what a test allocates, what it keeps, and what holds it.

The pytest plugin needs no import. These names are for test helpers and for use outside pytest; each is imported on
first use, so importing the package imports neither torch nor pytest. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudamem_testing import strategies as strategies
    from cudamem_testing.cycles.collect import ReferenceCycles, find_cycles, reference_cycles, warn_cycles, watch_cycles
    from cudamem_testing.cycles.draw import annotated_references, object_graph
    from cudamem_testing.cycles.results import Cycle
    from cudamem_testing.graphs.captured import GraphError
    from cudamem_testing.graphs.failure import CaptureError
    from cudamem_testing.graphs.report import LintReport
    from cudamem_testing.graphs.session import GraphCapture
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.growth import Grew, Growth
    from cudamem_testing.model.limits import LimitError
    from cudamem_testing.model.sizes import format_size, parse_size
    from cudamem_testing.model.windows import Window
    from cudamem_testing.operators.recording import OperatorMemory
    from cudamem_testing.operators.table import load_operators
    from cudamem_testing.operators.table_files import OperatorFileError
    from cudamem_testing.ranks.child import rank
    from cudamem_testing.run.memory import Memory
    from cudamem_testing.simulated import simulated_cuda
    from cudamem_testing.simulated.bindings import SimulatedCardError
    from cudamem_testing.simulated.estimate import Estimate, estimate
    from cudamem_testing.snapshots.moments import Snapshots
    from cudamem_testing.snapshots.record import SnapshotError
    from cudamem_testing.trace.graph import DataFlow
    from cudamem_testing.trace.profile import MemoryProfile, from_profile, memory_profile
    from cudamem_testing.windows.regions import OverBudget

__version__ = "0.2.0"
__all__ = [
    "CaptureError",
    "Cycle",
    "DataFlow",
    "Device",
    "Estimate",
    "GraphCapture",
    "GraphError",
    "Grew",
    "Growth",
    "LimitError",
    "LintReport",
    "Memory",
    "MemoryProfile",
    "OperatorFileError",
    "OperatorMemory",
    "OverBudget",
    "ReferenceCycles",
    "SimulatedCardError",
    "SnapshotError",
    "Snapshots",
    "Window",
    "annotated_references",
    "estimate",
    "find_cycles",
    "format_size",
    "from_profile",
    "load_operators",
    "memory_profile",
    "object_graph",
    "parse_size",
    "rank",
    "reference_cycles",
    "simulated_cuda",
    "warn_cycles",
    "watch_cycles",
]

_HOMES = {
    "CaptureError": "graphs.failure",
    "Cycle": "cycles.results",
    "DataFlow": "trace.graph",
    "Device": "model.devices",
    "Estimate": "simulated.estimate",
    "GraphCapture": "graphs.session",
    "GraphError": "graphs.captured",
    "Grew": "model.growth",
    "Growth": "model.growth",
    "LimitError": "model.limits",
    "LintReport": "graphs.report",
    "Memory": "run.memory",
    "MemoryProfile": "trace.profile",
    "OperatorFileError": "operators.table_files",
    "OperatorMemory": "operators.recording",
    "OverBudget": "windows.regions",
    "ReferenceCycles": "cycles.collect",
    "SimulatedCardError": "simulated.bindings",
    "SnapshotError": "snapshots.record",
    "Snapshots": "snapshots.moments",
    "Window": "model.windows",
    "annotated_references": "cycles.draw",
    "estimate": "simulated.estimate",
    "find_cycles": "cycles.collect",
    "format_size": "model.sizes",
    "from_profile": "trace.profile",
    "load_operators": "operators.table",
    "memory_profile": "trace.profile",
    "object_graph": "cycles.draw",
    "parse_size": "model.sizes",
    "rank": "ranks.child",
    "reference_cycles": "cycles.collect",
    "simulated_cuda": "simulated",
    "warn_cycles": "cycles.collect",
    "watch_cycles": "cycles.collect",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module, or the public module of that name."""
    if name == "strategies":  # not in __all__: it needs hypothesis
        return import_module(f"{__name__}.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
