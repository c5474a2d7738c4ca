"""Leaks: what a test retains, why it lives, where it was allocated and who holds it. PYTEST_DONT_REWRITE"""
