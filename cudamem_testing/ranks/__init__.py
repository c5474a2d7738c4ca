"""Processes that a test starts, measured as it is: the ranks of distributed training.

``watch`` has the processes of ``multiprocessing`` measured that a test starts with the start methods ``spawn`` and
``forkserver``, as those of ``torch.multiprocessing.spawn`` are. ``child`` measures one of them, or any other process
that asks for it with ``cudamem_testing.rank``. Each writes a file into a folder of the test: first that it has begun,
and at its end what it took. The test's process reads them. PYTEST_DONT_REWRITE
"""
