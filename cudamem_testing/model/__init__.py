"""Shared types: sizes, devices, limits, counters, windows, findings, records. PYTEST_DONT_REWRITE"""
