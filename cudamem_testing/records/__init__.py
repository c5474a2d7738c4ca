"""Recorded files, which are committed: baselines, known findings, expected texts.

PYTEST_DONT_REWRITE
"""
