"""Where a project keeps what is recorded. Read at every start of pytest, so it imports nothing. PYTEST_DONT_REWRITE"""

FOLDER = "__cudamem__"
"""Beside each test module, and at rootdir."""
KNOWN = f"{FOLDER}/known.jsonl"
"""Below rootdir, when nothing else is said."""
