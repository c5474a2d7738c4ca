"""Counters over time, nested spans, and enforcing limits. PYTEST_DONT_REWRITE"""
