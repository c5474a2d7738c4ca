"""Baselines: what tests took when it was recorded, kept in committed files, and what has changed since.

PYTEST_DONT_REWRITE
"""
