"""Data flow of tensors and what their memory is for: from the profiler's events to graphs, timelines and texts.

Each module takes the result of the one before it:

======================  ======================================================================
:mod:`.profile`         record a piece of code, or take a recorded profile
:mod:`.reader`          one pass over the profiler's events, into plain :mod:`.records`
:mod:`.schemas`         which arguments an operator writes, from the overloads that fit
:mod:`.flow`            leaves, touches, versions: the nodes of the graph
:mod:`.graph`           the graph: queries, JSON
:mod:`.draw`            the graph as a diagram
:mod:`.aliases`         operators that differ by device, folded into families
:mod:`.names`           names for tensors, by address
:mod:`.text`            the graph as text
:mod:`.gradients`       which storages were gradients, and how that is known
:mod:`.contents`        every version of every storage, numbered, for the passes of
:mod:`.categories`      parameter, gradient, activation, ...; :mod:`.category_text` shows them
:mod:`.measured`        what a recorder saw during the recording
:mod:`.timeline`        every change of memory; as columns (:mod:`.series`), text
                        (:mod:`.timeline_text`) and picture (:mod:`.picture`)
:mod:`.places`          operator, modules and line of an event
:mod:`.peak`            the moment of the peak and what was live; :mod:`.limits` on it
:mod:`.expect`          the assertions, which compare results with the text at the call
======================  ======================================================================

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from cudamem_testing.trace.categories import Categories, Category
from cudamem_testing.trace.changes import Action, MemoryChange
from cudamem_testing.trace.flow import Diagnostic, Node, Use
from cudamem_testing.trace.graph import DataFlow, Edge, Lifetime, Name, data_flow
from cudamem_testing.trace.peak import Peak
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
from cudamem_testing.trace.timeline import Timeline

__all__ = [
    "Action",
    "Allocation",
    "Categories",
    "Category",
    "DataFlow",
    "Diagnostic",
    "Edge",
    "Lifetime",
    "MemoryChange",
    "MemoryProfile",
    "Name",
    "Node",
    "Operator",
    "OutOfMemory",
    "Peak",
    "PythonCall",
    "Scope",
    "ScopeKind",
    "Storage",
    "Timeline",
    "Trace",
    "Use",
    "data_flow",
    "from_profile",
    "read_events",
]
