"""Reference cycles that keep memory: caught by the collector, explained in words, drawn.

Memory in a cycle is freed only when Python's collector happens to run, so peaks become random. ``watch`` records what
the collector finds, ``collect`` does so for a block or a process, ``graph`` splits it into strongly connected
components, ``explain`` finds how each cycle closes and what it keeps alive, ``words`` writes it as text, ``source``
finds the line that closes it, ``draw`` draws it.

PYTEST_DONT_REWRITE
"""
