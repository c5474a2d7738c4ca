"""Measures one test, attributes memory to its owners, and settles what is left before it is judged.
PYTEST_DONT_REWRITE
"""
