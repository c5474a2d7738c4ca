"""Snapshots for people and for other programs: text, JSON, and a page. PYTEST_DONT_REWRITE"""
