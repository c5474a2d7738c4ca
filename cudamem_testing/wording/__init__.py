"""Sentences: no other package writes any about findings, and none parses them.

:mod:`.findings` makes the text of any finding, and imports the modules for each kind. PYTEST_DONT_REWRITE
"""
