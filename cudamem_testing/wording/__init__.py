"""Sentences: no other package writes any about findings, and none parses them.

:mod:`.findings` makes the text of any finding, and imports all that knows one kind each. PYTEST_DONT_REWRITE
"""
