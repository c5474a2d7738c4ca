"""Out of memory: what was live when an allocation failed, and what to do about it. PYTEST_DONT_REWRITE"""
