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
