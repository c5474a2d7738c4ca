"""Data flow of tensors: from the profiler's events to a graph, and to text that holds on every device.

Each module takes the result of the one before it:

======================  ======================================================================
:mod:`.profile`         record a piece of code, or take a profile that somebody recorded
:mod:`.reader`          one pass over the profiler's events, into plain :mod:`.records`
:mod:`.schemas`         which arguments an operator writes, from the overloads that fit
:mod:`.flow`            leaves, touches, versions: the nodes of the graph
:mod:`.graph`           the graph: queries, JSON
:mod:`.draw`            the graph as a diagram
:mod:`.aliases`         operators that differ by device, folded into families
:mod:`.names`           names for tensors, by address
:mod:`.text`            the graph as text
======================  ======================================================================

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from cudamem_testing.trace.flow import Diagnostic, Node, Use
from cudamem_testing.trace.graph import DataFlow, Edge, Lifetime, Name, data_flow
from cudamem_testing.trace.profile import MemoryProfile, from_profile
from cudamem_testing.trace.reader import read_events
from cudamem_testing.trace.records import (
    Allocation,
    Operator,
    OutOfMemory,
    PythonCall,
    Scope,
    ScopeKind,
    Storage,
    Trace,
)

__all__ = [
    "Allocation",
    "DataFlow",
    "Diagnostic",
    "Edge",
    "Lifetime",
    "MemoryProfile",
    "Name",
    "Node",
    "Operator",
    "OutOfMemory",
    "PythonCall",
    "Scope",
    "ScopeKind",
    "Storage",
    "Trace",
    "Use",
    "data_flow",
    "from_profile",
    "read_events",
]
