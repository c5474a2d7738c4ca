"""Records: what is committed and compared with: baselines, known findings, and what has changed since.

PYTEST_DONT_REWRITE
"""
