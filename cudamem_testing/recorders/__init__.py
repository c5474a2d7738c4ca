"""Recorders: the source of truth for one device. PYTEST_DONT_REWRITE"""
