"""The graph of Python objects: labelled references, safe names, and what holds what.

``references`` and ``name_of`` look at one object without running its code, ``storages_of`` says which memory a tensor
keeps, ``find_holders`` finds the shortest chain from a root (a module, a frame, a class, a thread) to memory that
is still alive. Results are text: they keep no object alive.

What searches the heap is imported on first use: inside a collection there is time for the rest alone.
PYTEST_DONT_REWRITE
"""
