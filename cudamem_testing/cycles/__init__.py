"""Reference cycles that keep memory: caught by the collector, explained in words, drawn.

Memory in a cycle is freed only when Python's collector happens to run, so peaks become random. ``watch`` sees what the
collector finds, ``collect`` catches it for a block or a process, ``graph`` splits it into strongly connected
components, ``explain`` says of each cycle how it closes and what it keeps, ``words`` writes that down, ``source`` finds
the line that closes it, ``draw`` draws it.

PYTEST_DONT_REWRITE
"""
